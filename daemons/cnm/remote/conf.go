// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package remote has the code that the plugins cnm and cnm-ipam share. It finds drivers and turns
// their errors into CNI errors. It also stores the requests to drivers: those for a network in a
// file with a lock, those for an attachment in a record. These files survive a reboot, because the
// state of Docker's drivers does.
package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf says where a driver is. Exactly one of driver, socket and url must be set.
type Conf struct {
	// Driver is the name of a driver, found where Docker finds it: /run/docker/plugins,
	// then .spec and .json files in /etc/docker/plugins and /usr/lib/docker/plugins.
	// Reference: none, ours only.
	Driver string `json:"driver"`

	// Socket is the path of the driver's socket, instead of driver.
	// Reference: none, ours only.
	Socket string `json:"socket"`

	// URL is the driver's address (unix://, tcp://, http:// or https://), instead of
	// driver.
	// Reference: none, ours only.
	URL string `json:"url"`

	// TLS are the certificates for socket and url.
	// Reference: none, ours only.
	TLS *cnm.TLS `json:"tls"`

	// Timeout limits one call of the driver, in seconds. Default: 30. Reference: none, ours only.
	Timeout int `json:"timeout"`

	// DelIgnoreUnreachable forgets an attachment at DEL even if the driver cannot be
	// reached. Without it, DEL succeeds too, and a later ADD or GC ends the attachment at
	// the driver.
	// Reference: none, ours only.
	DelIgnoreUnreachable bool `json:"delIgnoreUnreachable"`
}

// Endpoint finds the driver.
func (c *Conf) Endpoint() (cnm.DriverAddr, error) {
	if err := c.Validate(); err != nil {
		return cnm.DriverAddr{}, err
	}
	switch {
	case c.Socket != "":
		return cnm.DriverAddr{URL: "unix://" + c.Socket, TLS: c.TLS}, nil
	case c.URL != "":
		return cnm.DriverAddr{URL: c.URL, TLS: c.TLS}, nil
	}
	return cnm.DefaultDirs().Find(c.Driver)
}

// Validate returns an error unless the configuration names exactly one driver.
func (c *Conf) Validate() error {
	n := 0
	for _, s := range []string{c.Driver, c.Socket, c.URL} {
		if s != "" {
			n++
		}
	}
	switch {
	case n != 1:
		return spec.Invalid("exactly one of driver, socket and url must be set")
	case c.Socket != "" && !filepath.IsAbs(c.Socket):
		return spec.Invalid("socket %q: the path must be absolute", c.Socket)
	case c.Driver != "" && c.TLS != nil:
		return spec.Invalid("tls goes with url; a driver with a name has it in its .json file")
	case c.Timeout < 0 || c.Timeout > 600:
		return spec.Invalid("timeout %d: want seconds up to 600", c.Timeout)
	}
	if c.URL != "" {
		if _, err := cnm.NewClient(cnm.DriverAddr{URL: c.URL}, cnm.ClientOptions{}); err != nil {
			return spec.Invalid("%w", err)
		}
	}
	return nil
}

// Identity returns a text that is different for each driver.
func (c *Conf) Identity() string { return c.Driver + "\x00" + c.Socket + "\x00" + c.URL }

// Client finds the driver and returns a client for it. The end of the session closes the client.
func (c *Conf) Client(r *plugin.Request) (*cnm.Client, error) {
	at, err := c.Endpoint()
	switch {
	case errors.Is(err, cnm.ErrNoDriver):
		return nil, Error(err)
	case err != nil:
		return nil, spec.Invalid("%w", err)
	}
	return c.client(r, at)
}

func (c *Conf) client(r *plugin.Request, at cnm.DriverAddr) (*cnm.Client, error) {
	depth, _ := strconv.Atoi(os.Getenv(cnm.EnvDepth)) // set only if a driver has called this plugin
	client, err := cnm.NewClient(at, cnm.ClientOptions{Timeout: time.Duration(c.Timeout) * time.Second, Depth: depth})
	if err != nil {
		return nil, spec.Invalid("%w", err)
	}
	r.Session.OnClose(client.Close)
	return client, nil
}

// Recorded returns a client for the driver that a record names. If the record has the driver's
// name, Recorded searches for the driver again, because it may have another socket now.
func (c *Conf) Recorded(r *plugin.Request, at cnm.DriverAddr) (*cnm.Client, error) {
	if at.Name != "" {
		if found, err := cnm.DefaultDirs().Find(at.Name); err == nil {
			at = found
		}
	}
	return c.client(r, at)
}

// CodeDriver is the CNI error code for an error that a driver answered.
const CodeDriver spec.Code = 100

// Error gives an error of a driver its CNI error code.
func Error(err error) error {
	var answered *cnm.DriverError
	var coded *spec.Error
	switch {
	case err == nil, errors.As(err, &coded):
		return err
	case errors.As(err, &answered):
		return spec.Errorf(CodeDriver, "%w", err)
	case errors.Is(err, cnm.ErrBadAnswer):
		return spec.Errorf(spec.CodeDecoding, "%w", err)
	case errors.Is(err, cnm.ErrUnreachable), errors.Is(err, cnm.ErrTimeout), errors.Is(err, cnm.ErrLost), errors.Is(err, cnm.ErrNoDriver), errors.Is(err, context.DeadlineExceeded):
		return spec.Errorf(spec.CodeTryAgain, "%w", err)
	}
	return err
}

// Ready returns an error unless the driver answers and implements a service. STATUS calls it, and
// an ADD before its first request. Docker's managed plugins do not have the method Activate;
// Ready accepts that.
func Ready(ctx context.Context, c *cnm.Client, service string) error {
	m, err := c.Activate(ctx)
	switch {
	case errors.Is(err, cnm.ErrNotImplemented):
		return nil
	case err != nil:
		return Error(err)
	}
	if slices.Contains(m.Implements, service) {
		return nil
	}
	return spec.Invalid("driver %s is no %s: it implements %q", c.Endpoint(), service, m.Implements)
}

// Answered turns an error that the driver answered into a warning. If the driver did not answer,
// Answered returns the error. If the driver does not have the method, Answered gives neither a
// warning nor an error.
func Answered(r *plugin.Request, err error) error {
	if err == nil || cnm.Unanswered(err) {
		return err
	}
	if !errors.Is(err, cnm.ErrNotImplemented) {
		kernel.Warn(r, err)
	}
	return nil
}

// Explain lists a call that a dry run does not make.
func Explain(r *plugin.Request, format string, args ...any) {
	r.Session.Dry("driver: " + fmt.Sprintf(format, args...))
}
