// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// TLS names files in PEM format. etcd's certificate must be valid for the host name of the
// endpoint.
type TLS struct {
	On        bool   // use TLS even without any file, with the authorities of the system
	CA        string // authorities for etcd's certificate, instead of the system's
	Cert, Key string // our certificate and its key
	Names     string // of a server: the names of those clients that may connect, with commas; all with a certificate if it is empty
}

// secrets holds what a client was created with. It comes from files that an operator may
// replace while the client runs.
type secrets struct {
	tls          *tls.Config // nil if TLS is not used
	ca, password string
}

// secrets reads the files, except that of the password: it may be a pipe, and Options.Password
// already has its content.
func (o *Options) secrets() (s secrets, err error) {
	s.password = o.Password
	s.tls, s.ca, err = o.TLS.config()
	return s, err
}

// renew drops a client if its token was refused or if its secrets have changed. The next call
// creates a new client. A call that failed calls renew. It does not wait for another call that
// is creating a client.
func (s *Engine) renew(staleToken bool) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	default:
		return
	}
	if data, err := durable.ReadConf(s.opts.PasswordFile); err == nil && len(data) > 0 {
		s.opts.Password = strings.TrimRight(string(data), "\r\n")
	}
	now, err := s.opts.secrets()
	if s.client == nil || err != nil || !staleToken && now.ca == s.made.ca && now.password == s.made.password {
		return
	}
	_ = s.client.Close() // its streams end, and start again with the next client
	s.client = nil
}

// config returns the TLS configuration, or nil without TLS. ca is the content of the file of
// authorities.
func (t TLS) config() (c *tls.Config, ca string, err error) {
	if t == (TLS{}) {
		return nil, "", nil
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, "", errors.New("TLS: certificate and key go together")
	}
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		if c.RootCAs, ca, err = t.authorities(); err != nil {
			return nil, "", err
		}
	}
	if t.Cert != "" {
		if _, err := t.load(nil); err != nil {
			return nil, "", err
		}
		c.GetClientCertificate = t.load
	}
	return c, ca, nil
}

// serverConfig reads all files again for each connection, because they may have been replaced.
func (t TLS) serverConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	clients, _, err := t.authorities()
	if err != nil {
		return nil, err
	}
	pair, err := t.load(nil)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, VerifyConnection: t.admits,
	}, nil
}

// admits refuses a client whose certificate has none of the names. An authority may sign for others
// than the hosts.
func (t TLS) admits(c tls.ConnectionState) error {
	if t.Names == "" {
		return nil
	}
	leaf := c.PeerCertificates[0] // there is one: tls.RequireAndVerifyClientCert
	for name := range strings.SplitSeq(t.Names, ",") {
		if name == leaf.Subject.CommonName || slices.Contains(leaf.DNSNames, name) {
			return nil
		}
	}
	return fmt.Errorf("the certificate of %q has none of the names %s", leaf.Subject.CommonName, t.Names)
}

func (t TLS) authorities() (pool *x509.CertPool, text string, err error) {
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, "", fmt.Errorf("TLS: %w", err)
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, "", fmt.Errorf("TLS: no certificate in %s", t.CA)
	}
	return pool, string(pem), nil
}

// load reads our certificate again for each connection, because it may have been renewed.
func (t TLS) load(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS: read %s and %s: %w", t.Cert, t.Key, err)
	}
	return &pair, nil
}
