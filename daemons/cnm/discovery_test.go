// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// put writes a file below dir.
func put(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFind checks the order of the search: sockets, then .spec files, then .json files. Each may
// lie in the directory itself or in a subdirectory with the driver's name.
func TestFind(t *testing.T) {
	sockets, etc, lib := t.TempDir(), t.TempDir(), t.TempDir()
	d := Dirs{Sockets: []string{sockets}, Specs: []string{etc, lib}}
	socket := func(name string) string {
		path := filepath.Join(sockets, name)
		serve(t, path)
		return "unix://" + path
	}
	put(t, etc, "a.spec", "tcp://127.0.0.1:1")
	put(t, etc, "b.spec", " tcp://127.0.0.1:2\n")
	put(t, etc, "b.json", `{"Addr":"tcp://127.0.0.1:3"}`)
	put(t, lib, "b.spec", "tcp://127.0.0.1:4")
	put(t, lib, "c/c.spec", "http://127.0.0.1:5")
	put(t, lib, "d.json", `{"Name":"d","Addr":"https://127.0.0.1:6","TLSConfig":{"InsecureSkipVerify":true,"CAFile":"/ca","CertFile":"/cert","KeyFile":"/key"}}`)
	put(t, etc, "e.spec", "127.0.0.1:7")
	put(t, etc, "f.json", `{"Addr":`)
	put(t, sockets, "g.sock", "no socket")
	put(t, lib, "g.spec", "unix:///g")
	for name, want := range map[string]string{
		"a": socket("a.sock"), "h": socket("h/h.sock"), "b": "tcp://127.0.0.1:2", "c": "http://127.0.0.1:5", "d": "https://127.0.0.1:6", "g": "unix:///g",
	} {
		if at, err := d.Find(name); err != nil || at.URL != want || at.Name != name {
			t.Errorf("%s: %+v, %v; want %s", name, at, err, want)
		}
	}
	if at, err := d.Find("d"); err != nil || *at.TLS != (TLS{true, "/ca", "/cert", "/key"}) {
		t.Errorf("d: %+v, %v", at.TLS, err)
	}
	for name, text := range map[string]string{
		"e": "is no URL of a driver", "f": "unexpected end", "nobody": "plugin not found", "../a": "a name is of", "": "a name is of", "/a": "a name is of", "a b": "a name is of", ".": "a name is of",
	} {
		if _, err := d.Find(name); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want %q", name, err, text)
		}
	}
	if _, err := d.Find("nobody"); !errors.Is(err, ErrNoDriver) {
		t.Error(err)
	}
}

// Find refuses an irregular file and a file that is too long, and says why. It does not wait for
// a pipe.
func TestIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "pipe.spec"), 0o600), os.Mkdir(filepath.Join(dir, "dir.json"), 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "long.spec", "tcp://127.0.0.1:1"+strings.Repeat("\n", maxSpec))
	for _, name := range []string{"pipe", "dir", "long"} {
		if _, err := (Dirs{Specs: []string{dir}}).Find(name); err == nil || !strings.Contains(err.Error(), "want a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Symlink(put(t, dir, "real", "tcp://127.0.0.1:1"), filepath.Join(dir, "link.spec")); err != nil {
		t.Fatal(err)
	}
	if at, err := (Dirs{Specs: []string{dir}}).Find("link"); err != nil || at.URL != "tcp://127.0.0.1:1" {
		t.Errorf("a link: %v %v", at, err)
	}
}

func TestEndpoints(t *testing.T) {
	for at, text := range map[string]string{
		"unix://relative": "absolute", "unix://": "absolute", "tcp://host": "host and port", "ftp://x": "want unix", "": "want unix", "http://": "host and port", "%": "invalid",
	} {
		if _, err := NewClient(DriverAddr{URL: at}, ClientOptions{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want %q", at, err, text)
		}
	}
	for _, files := range []TLS{{CAFile: "/nonexistent"}, {CertFile: "/nonexistent"}, {CAFile: put(t, t.TempDir(), "ca", "no PEM")}} {
		if _, err := NewClient(DriverAddr{URL: "tcp://h:1", TLS: &files}, ClientOptions{}); err == nil {
			t.Errorf("%+v is accepted", files)
		}
	}
}

// pair makes a certificate. signer signs it; without a signer it is self-signed.
func pair(t *testing.T, name string, signer *tls.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotAfter: time.Now().Add(time.Hour), IsCA: signer == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, with := cert, any(key)
	if signer != nil {
		parent, with = signer.Leaf, signer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, with)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// files writes a certificate and its key.
func files(t *testing.T, dir, name string, c *tls.Certificate) (cert, key string) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	cert = put(t, dir, name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})))
	return cert, put(t, dir, name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
}

// TestTLS finds a driver by its .json file. Client and driver check each other's certificate.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca := pair(t, "ca", nil)
	caFile, _ := files(t, dir, "ca", ca)
	certFile, keyFile := files(t, dir, "client", pair(t, "client", ca))
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	d := &scripted{answer: "{}"}
	srv := httptest.NewUnstartedServer(&Handler{Network: d})
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*pair(t, "driver", ca)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	srv.Config.ErrorLog = nil
	srv.StartTLS()
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "https://")
	for _, c := range []struct {
		tls string
		ok  bool
	}{
		{fmt.Sprintf(`{"CAFile":%q,"CertFile":%q,"KeyFile":%q}`, caFile, certFile, keyFile), true},
		{fmt.Sprintf(`{"InsecureSkipVerify":true,"CertFile":%q,"KeyFile":%q}`, certFile, keyFile), true},
		{fmt.Sprintf(`{"CAFile":%q}`, caFile), false},
		{fmt.Sprintf(`{"CertFile":%q,"KeyFile":%q}`, certFile, keyFile), false}, // no CAFile to check the driver's certificate with
	} {
		put(t, dir, "secure.json", fmt.Sprintf(`{"Addr":"tcp://%s","TLSConfig":%s}`, addr, c.tls))
		at, err := Dirs{Specs: []string{dir}}.Find("secure")
		if err != nil {
			t.Fatal(err)
		}
		client, err := NewClient(at, ClientOptions{Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Activate(t.Context()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.tls, err)
		}
	}
	if resp, err := http.Get("http://" + addr); err == nil && resp.StatusCode == 200 {
		t.Error("the driver speaks without TLS")
	}
}
