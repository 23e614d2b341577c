// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
)

// TLS are files in PEM. etcd's certificate has to be for the host of its endpoint.
type TLS struct {
	On        bool   // even when there is nothing else: the system's authorities are believed
	CA        string // of who signs etcd's certificate, instead of the system's
	Cert, Key string // ours
}

// secrets are what a client is made with, of files that people replace while it runs.
type secrets struct {
	tls          *tls.Config // nil: without
	ca, password string
}

// secrets reads them. The password has been read: its file may be a pipe.
func (o *Options) secrets() (s secrets, err error) {
	s.password = o.Password
	s.tls, s.ca, err = o.TLS.config()
	return s, err
}

// renew drops a client that is spoilt, or was made with other secrets than there are
// now: the next call makes another. A call that fails looks here, and does not wait
// for one that is just making a client.
func (s *Store) renew(spoilt bool) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	default:
		return
	}
	if data, err := atomicfile.ReadConf(s.opts.PasswordFile); err == nil && len(data) > 0 {
		s.opts.Password = strings.TrimRight(string(data), "\r\n")
	}
	now, err := s.opts.secrets()
	if s.client == nil || err != nil || !spoilt && now.ca == s.made.ca && now.password == s.made.password {
		return
	}
	_ = s.client.Close() // its streams end, and begin anew with the next
	s.client = nil
}

// config is nil without TLS. With it comes what the file of authorities has.
func (t TLS) config() (c *tls.Config, ca string, err error) {
	if t == (TLS{}) {
		return nil, "", nil
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, "", errors.New("TLS: certificate and key go together")
	}
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, "", fmt.Errorf("TLS: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, "", fmt.Errorf("TLS: no certificate in %s", t.CA)
		}
		ca = string(pem)
	}
	if t.Cert != "" {
		if _, err := t.load(nil); err != nil {
			return nil, "", err
		}
		c.GetClientCertificate = t.load
	}
	return c, ca, nil
}

// load reads our certificate for each connection: it may have been renewed.
func (t TLS) load(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS: read %s and %s: %w", t.Cert, t.Key, err)
	}
	return &pair, nil
}
