// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS are files in PEM. etcd's certificate has to be for the host of its endpoint.
type TLS struct {
	On        bool   // even when there is nothing else: the system's authorities are believed
	CA        string // of who signs etcd's certificate, instead of the system's
	Cert, Key string // ours
}

// config is nil without TLS.
func (t TLS) config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("TLS: certificate and key go together")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS: no certificate in %s", t.CA)
		}
	}
	if t.Cert != "" {
		if _, err := t.load(nil); err != nil {
			return nil, err
		}
		c.GetClientCertificate = t.load
	}
	return c, nil
}

// load reads our certificate for each connection: it may have been renewed.
func (t TLS) load(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("TLS: read %s and %s: %w", t.Cert, t.Key, err)
	}
	return &pair, nil
}
