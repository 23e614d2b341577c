// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes name.pem and name.key, valid for an hour unless the template has an end. An
// authority signs its own certificate.
func (a *authority) issue(name string, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	must(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", private)
	cert, err := x509.ParseCertificate(der)
	must(a.t, err)
	return key, cert
}

func (a *authority) write(name, kind string, der []byte) {
	must(a.t, os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func TestTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: both})
	ca.issue("client", &x509.Certificate{ExtKeyUsage: both})
	stranger.issue("client", &x509.Certificate{ExtKeyUsage: both})
	server := newServer(t, "--cert-file="+ca.path("server.pem"), "--key-file="+ca.path("server.key"), "--trusted-ca-file="+ca.path("ca.pem"), "--client-cert-auth")
	good := TLS{CA: ca.path("ca.pem"), Cert: ca.path("client.pem"), Key: ca.path("client.key")}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		tls    TLS
		reason string
	}{
		"good":                {good, ""},
		"not the server's CA": {TLS{CA: stranger.path("ca.pem"), Cert: good.Cert, Key: good.Key}, "unknown authority"},
		"a stranger's":        {TLS{CA: good.CA, Cert: stranger.path("client.pem"), Key: stranger.path("client.key")}, "trust our certificate?"},
		"no certificate":      {TLS{CA: good.CA}, "require a client certificate?"},
		"no TLS":              {TLS{}, "require TLS?"},
	} {
		all.Go(func() {
			o := server.options(t)
			o.TLS = c.tls
			var err error
			for _, o.Timeout = range []time.Duration{3 * time.Second, 20 * time.Second} { // a busy machine learns the reason late
				err = listed(t.Context(), o)
				if (err == nil) == (c.reason == "") && (err == nil || strings.Contains(err.Error(), c.reason)) {
					return
				}
			}
			t.Errorf("%s: %v", name, err)
		})
	}
	all.Wait()
	for name, wrong := range map[string]TLS{
		"no file": {CA: "/nowhere"}, "no PEM": {CA: ca.path("ca.key")}, "half": {Cert: good.Cert}, "another's key": {Cert: good.Cert, Key: ca.path("ca.key")},
	} {
		o := server.options(t)
		o.TLS = wrong
		if s, err := connect(o); err == nil {
			t.Errorf("%s: opened %v", name, s)
		}
	}
}

// listed reads networks once.
func listed(ctx context.Context, o Options) error {
	s, err := connect(o)
	if err != nil {
		return err
	}
	_, _, err = s.Networks().List(ctx, "")
	return errors.Join(err, s.Close())
}

// etcd does not say that it refuses an expired certificate. Without a login, it takes the user from
// the certificate. Our errors name the expiry and the user.
func TestOurCertificate(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue("host", &x509.Certificate{})
	o := Options{Endpoints: []string{"192.0.2.1:2379"}, Cluster: "blue", TLS: TLS{Cert: ca.path("host.pem"), Key: ca.path("host.key")}}
	s := open(t, o)
	says := func(err error, what string) {
		t.Helper()
		if err := s.explain(err, new(reason)); !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q in it", err, what)
		}
	}
	says(context.DeadlineExceeded, "trust our certificate?")
	says(rpctypes.ErrPermissionDenied, `give the user "host" a role`)
	ca.issue("host", &x509.Certificate{NotAfter: time.Now().Add(-time.Minute)})
	says(context.DeadlineExceeded, "our certificate "+o.TLS.Cert+" expired at ")
}

// The rights of a user end at the prefix of a cluster. After a restart, which forgets all
// logins, the client logs in again.
func TestPassword(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	o := server.options(t)
	admin := open(t, o)
	must(t, admin.call(t.Context(), func(ctx context.Context, c *clientv3.Client) error { return setUpUsers(ctx, c, admin.prefix) }))
	login := func(user, password, cluster string) *Engine {
		o := o
		o.User, o.Password, o.Cluster = user, password, cluster
		return open(t, o)
	}
	ctx := t.Context()
	refused := map[string]struct {
		s     *Engine
		cause error
	}{
		"nobody":          {admin, rpctypes.ErrUserEmpty},
		"wrong password":  {login("patchbay", "wrong", o.Cluster), rpctypes.ErrAuthFailed},
		"another cluster": {login("patchbay", "secret", "other"), rpctypes.ErrPermissionDenied},
		"another prefix":  {login("patchbay", "secret", o.Cluster+"x"), rpctypes.ErrPermissionDenied},
	}
	for name, c := range refused {
		_, err := c.s.Networks().Create(ctx, network("n"), nil)
		if !errors.Is(err, c.cause) {
			t.Errorf("%s: %v", name, err)
		}
		t.Log(name, err)
		for _, err := range c.s.Networks().Watch(ctx, "") {
			if !errors.Is(err, c.cause) {
				t.Errorf("%s: watch: %v", name, err)
			}
		}
	}
	s := login("patchbay", "secret", o.Cluster)
	l, err := s.Session(ctx, patience)
	must(t, err)
	at, err := s.Networks().Create(ctx, network("n"), l)
	must(t, err)
	keys := watched(ctx, s.Networks(), "")
	want(t, keys, "+n")
	server.kill()
	server.start()
	again(t, func() error { _, err := s.Networks().Update(ctx, network("n"), at); return err })
	want(t, keys, "+n")
	must(t, l.End(ctx))
	want(t, keys, "-n")
	if _, err := s.Networks().Create(ctx, network("n"), l); !errors.Is(err, store.ErrSessionOver) {
		t.Error(err)
	}
	server.kill()
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = login("patchbay", "secret", o.Cluster).Networks().Get(short, "n")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > patience/2 {
		t.Errorf("no etcd to log in at: %v after %v", err, time.Since(begin))
	}
}

func setUpUsers(ctx context.Context, c *clientv3.Client, prefix string) error {
	_, err := c.RoleAdd(ctx, "hosts")
	_, err2 := c.RoleGrantPermission(ctx, "hosts", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	err = errors.Join(err, err2)
	for user, role := range map[string]string{"root": "root", "patchbay": "hosts"} {
		_, err2 := c.UserAdd(ctx, user, "secret")
		_, err3 := c.UserGrantRole(ctx, user, role)
		err = errors.Join(err, err2, err3)
	}
	_, err2 = c.AuthEnable(ctx)
	return errors.Join(err, err2)
}
