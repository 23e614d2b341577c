// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/resident"
)

const day = 24 * time.Hour

// TestBadInput checks that an Event and the report for doctor name each fault and the remedy.
// Running pods keep the routes to other nodes, this node's podCIDRs and the network's file. If the
// API server accepts no request of the agent, there is no Event, and only doctor reports the fault.
func TestBadInput(t *testing.T) {
	own := func(podCIDRs ...string) func(*lab) {
		return func(l *lab) {
			n := kubeNode(1)
			n.Spec = corev1.NodeSpec{PodCIDRs: podCIDRs}
			l.api.set(n)
		}
	}
	for name, c := range map[string]struct {
		wrong  func(*lab)
		reason plan.Reason
		says   []string
		mute   bool // the API server takes no Event
	}{
		"no podCIDR":                     {own(), plan.Withheld, []string{"Node n1 has no podCIDRs any more", "registered again"}, false},
		"a wrong podCIDR":                {own("10.244.1.1/24", "nonsense\x1b[31m"), plan.Withheld, []string{`Node n1 has no valid podCIDRs, but ["10.244.1.1/24" "nonsense\x1b[31m"]`, "stay in use"}, false},
		"outside of the cluster":         {own("10.9.0.0/24"), plan.OutsideCluster, []string{"podCIDR 10.9.0.0/24 is in no --cluster-cidr", "give the agent"}, false},
		"the podCIDR of an older Node":   {func(l *lab) { l.api.set(renumbered(1, 2)) }, plan.Overlap, []string{"Node n1: podCIDR 10.244.2.0/24 overlaps 10.244.2.0/24 of Node n2, which keeps it: delete one"}, false},
		"a younger Node with this one's": {func(l *lab) { l.api.set(renumbered(3, 1)) }, plan.Overlap, []string{"Node n3: podCIDR 10.244.1.0/24 overlaps 10.244.1.0/24 of Node n1, which keeps it"}, false},
		"a key that is none":             {func(l *lab) { l.api.set(keyNode(1, "\x1b[2J{{.PodCIDR}}"+strings.Repeat("A", 100<<10))) }, "", nil, false},
		"an egress address that is none": {func(l *lab) { l.api.space("shop", "192.0.2.10, $(reboot)\x1b[2J"+strings.Repeat("1", 100<<10)) }, egressFailed,
			[]string{"namespace shop: annotation patchbay.net/egress: \"$(reboot)\\x1b[2J1", "correct the annotation"}, false},
		"the clock is ahead":  {func(l *lab) { l.dated(-day) }, clockOff, []string{"differs from the API server's by 24h0m0s: set the clock"}, false},
		"the clock is behind": {func(l *lab) { l.dated(day) }, clockOff, []string{"differs from the API server's by -24h0m0s: set the clock"}, false},
		"a token that expired": {func(l *lab) {
			l.api.say(func(s *apiServer) { s.refuse = http.StatusUnauthorized })
			l.api.cut(false)
		}, apiFailed, []string{"refuses this node's credentials: renew the kubeconfig"}, true},
		"a client certificate that expired":         {withTLS(0, -day, tls.RequestClientCert), apiFailed, []string{"refuses this node's credentials: renew the kubeconfig"}, true},
		"a client certificate that a proxy refuses": {withTLS(0, -day, tls.RequireAndVerifyClientCert), apiFailed, []string{"refuses this node's credentials: renew the kubeconfig"}, true},
		"a server's certificate of tomorrow":        {withTLS(2*day, 0, tls.NoClientCert), apiFailed, []string{"expired or not yet valid: set this node's clock", "is before"}, true},
		"a server's certificate of yesterday":       {withTLS(-day, 0, tls.NoClientCert), apiFailed, []string{"expired or not yet valid: set this node's clock", "is after"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 2)
			l.api.space("shop", "")
			var config atomic.Pointer[rest.Config]
			config.Store(&rest.Config{Host: l.api.url})
			l.next = &config
			l.start(func(o *Options) {
				o.Egress = true
				o.Config = func() (*rest.Config, string, error) { c := config.Load(); return c, fmt.Sprintf("%p", c), nil }
			})
			l.awaitPeers(n2)
			l.await("ready", func() bool { return l.Ready() == nil })
			l.reports("")
			conf := l.conf()
			c.wrong(l)
			if c.reason == "" { // not an agent of this transport's business
				l.await("the annotation", func() bool { key, _ := l.mirror.published(); return key != "" })
			}
			for _, says := range c.says {
				l.reports(says)
				if !c.mute {
					l.await("an Event: "+says, func() bool { return strings.Contains(l.event(c.reason), says) })
				}
			}
			resident.Signal(l.kernel) // compares everything
			for _, p := range l.reported().Problems {
				if strings.ContainsAny(p.Text, "\x1b\x00") || len(p.Text) > 2*longMessage {
					t.Errorf("%q", p.Text)
				}
			}
			if l.conf() != conf || !strings.Contains(l.fabric.peerList(), n2) || !strings.HasPrefix(l.blocks(), "[10.244.1.0/24 ") {
				t.Errorf("%s %s\n%s", l.fabric.peerList(), l.blocks(), l.conf())
			}
		})
	}
}

// dated lets the API server's clock be off.
func (l *lab) dated(off time.Duration) {
	l.api.say(func(s *apiServer) {
		s.before = func(w http.ResponseWriter) { w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat)) }
	})
	l.api.cut(false)
}

// withTLS gives the agent a kubeconfig with a certificate, for an API server with another one. The
// certificates are valid for a day, and their times are off, as they are if a clock is off.
func withTLS(server, client time.Duration, demand tls.ClientAuthType) func(*lab) {
	return func(l *lab) {
		l.Helper()
		ca := newAuthority(l.T)
		pool := x509.NewCertPool()
		pool.AddCert(ca.cert)
		verify := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		// The API server itself asks for a certificate, and answers 401 to one that is not valid.
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if demand == tls.RequestClientCert {
				if _, err := r.TLS.PeerCertificates[0].Verify(verify); err != nil {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
			}
			l.api.ServeHTTP(w, r)
		}))
		cert, key := ca.issue(server)
		pair, err := tls.X509KeyPair(cert, key)
		must(l.T, err)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: demand, ClientCAs: pool}
		s.StartTLS()
		l.Cleanup(func() { l.stop(); s.CloseClientConnections(); s.Close() })
		c := &rest.Config{Host: s.URL}
		c.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
		c.CertData, c.KeyData = ca.issue(client)
		l.next.Store(c)
		l.api.cut(false)
	}
}

// authority issues certificates.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{T: t}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-10 * day), NotAfter: time.Now().Add(10 * day), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	must(t, err)
	a.cert, err = x509.ParseCertificate(raw)
	must(t, err)
	return a
}

// issue makes a certificate and its key in PEM, valid for a day around a time.
func (a *authority) issue(off time.Duration) (cert, key []byte) {
	a.Helper()
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.T, err)
	at := time.Now().Add(off)
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "n1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: at.Add(-day / 2), NotAfter: at.Add(day / 2), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &pair.PublicKey, a.key)
	must(a.T, err)
	private, err := x509.MarshalPKCS8PrivateKey(pair)
	must(a.T, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}
