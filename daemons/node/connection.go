// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// connection keeps a client of the API server that matches the current configuration.
type connection struct {
	config  func() (*rest.Config, string, error)
	retry   time.Duration // the first pause after a failure
	observe func(server time.Time)

	mu      sync.Mutex
	version string
	api     API
}

// get returns the client. If the configuration has changed, it makes a new one.
func (c *connection) get() (API, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, version, err := c.config()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	if c.api != nil && version == c.version {
		return c.api, nil
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &dated{next, c.observe} })
	api, err := NewAPI(config)
	if err == nil {
		c.api, c.version = api, version
	}
	return api, err
}

// Kubeconfig returns an Options.Config that reads a kubeconfig file. The file may be replaced at
// any time. If file is "", Options.Config uses the ServiceAccount of this pod; the library reads
// its token again when the token changes.
func Kubeconfig(file string) func() (*rest.Config, string, error) {
	var known *rest.Config
	var text string
	return func() (*rest.Config, string, error) {
		if file == "" {
			if known != nil {
				return known, "", nil
			}
			c, err := rest.InClusterConfig()
			if errors.Is(err, rest.ErrNotInCluster) {
				err = errors.New("this is no pod with a ServiceAccount: name a kubeconfig with --kubeconfig")
			}
			known = c
			return c, "", err
		}
		data, err := durable.ReadGiven(file)
		if err != nil {
			return nil, "", err
		}
		if known == nil || string(data) != text {
			c, err := clientcmd.BuildConfigFromFlags("", file)
			if err != nil {
				return nil, "", fmt.Errorf("read %s: %w", file, err)
			}
			known, text = c, string(data)
		}
		return known, text, nil
	}
}

// dated passes the Date of each HTTP answer to observe.
type dated struct {
	next    http.RoundTripper
	observe func(time.Time)
}

// RoundTrip implements http.RoundTripper.
func (d *dated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.next.RoundTrip(r)
	if err == nil {
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			d.observe(at)
		}
	}
	return resp, err
}

// farOff is the largest difference between this node's clock and the API server's that is no
// problem. With a larger one, certificates and tokens soon become invalid.
const farOff = 5 * time.Minute

// observe compares this node's clock with the API server's.
func (a *Agent) observe(server time.Time) {
	var err error
	if off := time.Since(server).Round(time.Minute); off.Abs() > farOff {
		err = fmt.Errorf("this node's clock differs from the API server's by %v: set the clock, certificates and tokens depend on it", off)
	}
	a.trouble.set(clockOff, err)
}

// asked notes the result of a request.
func (a *Agent) asked(err error) {
	if err != nil {
		a.metrics.apiErrors.Inc()
		err = advise("Nodes", err)
	}
	a.trouble.set(apiFailed, err)
}

// expiredAlert is how a server refuses a certificate in the handshake. The error has no type.
const expiredAlert = "remote error: tls: expired certificate"

// advise says what to do about an error of the API server when it was asked for some objects.
func advise(objects string, err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case apierrors.IsUnauthorized(err), strings.Contains(err.Error(), expiredAlert):
		return fmt.Errorf("the API server refuses this node's credentials: renew the kubeconfig or the ServiceAccount's token; routes, network policies and Services stay: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the agent may not list and watch %s: apply its ClusterRole: %w", objects, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("a certificate is expired or not yet valid: set this node's clock, or renew it: %w", err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("credentials are missing: %w", err)
	}
	return fmt.Errorf("the API server does not answer as it should; routes, network policies and Services stay, and pods start: %w", err)
}
