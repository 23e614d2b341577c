// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// DriverAddr says where a driver listens.
type DriverAddr struct {
	Name string `json:"name,omitempty"` // used in messages
	// URL is unix:///path, tcp://host:port, http://host:port or https://host:port.
	URL string `json:"url"`
	TLS *TLS   `json:"tls,omitempty"` // nil: none, unless URL says https
}

// TLS holds the TLSConfig of a .json file. All files are PEM.
type TLS struct {
	// InsecureSkipVerify accepts any certificate of the driver.
	// Reference: none, ours only.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`

	// CAFile is the file of the authorities that may sign the driver's certificate. Default: the
	// system's list of authorities. Reference: none, ours only.
	CAFile string `json:"caFile,omitempty"`

	// CertFile is our certificate.
	// Reference: none, ours only.
	CertFile string `json:"certFile,omitempty"`

	// KeyFile is the key of our certificate.
	// Reference: none, ours only.
	KeyFile string `json:"keyFile,omitempty"`
}

// String returns the name, or the URL if there is no name.
func (e DriverAddr) String() string { return cmp.Or(e.Name, e.URL) }

// ClientOptions holds the times of a client. Zero values mean the defaults.
type ClientOptions struct {
	// Timeout limits one call, without the time to connect. Default 30 s.
	Timeout time.Duration
	// Patience is how long a call waits for a driver that does not listen, for example because it
	// restarts. Default 2 s. Docker waits 15 s.
	Patience time.Duration
	// Depth is how many drivers have already called each other in a chain that ends at this client
	// (EnvDepth).
	Depth int
}

const (
	defaultTimeout  = 30 * time.Second
	defaultPatience = 2 * time.Second
	firstPause      = 50 * time.Millisecond
)

// Client calls one driver. It implements NetworkDriver with all optional interfaces, and
// IPAMDriver. Its methods may be called concurrently.
type Client struct {
	at   DriverAddr
	base string // http://host
	http *http.Client
	opts ClientOptions
}

// NewClient returns a client, but does not connect. It fails if the address is invalid or if it
// cannot read the TLS files.
func NewClient(at DriverAddr, opts ClientOptions) (*Client, error) {
	opts.Timeout = cmp.Or(max(opts.Timeout, 0), defaultTimeout)
	opts.Patience = cmp.Or(max(opts.Patience, 0), defaultPatience)
	u, err := url.Parse(at.URL)
	if err != nil {
		return nil, fmt.Errorf("driver %s: %w", at, err)
	}
	c := &Client{at: at, opts: opts}
	// Connections are not kept open, because the driver may restart between two calls.
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	if c.base, err = target(u, at.TLS != nil, transport); err != nil {
		return nil, fmt.Errorf("driver %s: %w", at, err)
	}
	if at.TLS != nil {
		if transport.TLSClientConfig, err = at.TLS.config(); err != nil {
			return nil, fmt.Errorf("driver %s: %w", at, err)
		}
	}
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// unixHost is the host name that Docker sends over a socket.
const unixHost = "plugin.moby.localhost"

// target returns the HTTP URL for a driver's URL.
func target(u *url.URL, secure bool, transport *http.Transport) (string, error) {
	switch u.Scheme {
	case "unix":
		path := u.Host + u.Path
		if path == "" || path[0] != '/' {
			return "", fmt.Errorf("url %s: want unix:///absolute/path", u)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return "http://" + unixHost, nil
	case "tcp", "http", "https":
		if u.Port() == "" && u.Scheme == "tcp" || u.Host == "" {
			return "", fmt.Errorf("url %s: want host and port", u)
		}
		if secure || u.Scheme == "https" {
			return "https://" + u.Host, nil
		}
		return "http://" + u.Host, nil
	}
	return "", fmt.Errorf("url %q: want unix, tcp, http or https", u)
}

func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // the operator asked for this
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA file %s: no certificate in it", t.CAFile)
		}
	}
	if t.CertFile == "" && t.KeyFile == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// Endpoint returns where the driver listens.
func (c *Client) Endpoint() DriverAddr { return c.at }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// unreachable reports whether a call cannot have reached a driver, because no program listens.
// For an error after the connection was made, unreachable returns false: the driver may have
// carried out the call.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// Client implements all interfaces that a driver can have.
var (
	_ NetworkDriver  = (*Client)(nil)
	_ Connectivity   = (*Client)(nil)
	_ GatewayChecker = (*Client)(nil)
	_ Allocator      = (*Client)(nil)
	_ Discoverer     = (*Client)(nil)
	_ IPAMDriver     = (*Client)(nil)
)

// Capabilities calls NetworkDriver.GetCapabilities.
func (c *Client) Capabilities(ctx context.Context) (*Capabilities, error) {
	return query[Capabilities](ctx, c, "NetworkDriver.GetCapabilities", nil)
}

// GwAllocCheck calls NetworkDriver.GwAllocCheck.
func (c *Client) GwAllocCheck(ctx context.Context, in *GwAllocCheckRequest) (*GwAllocCheckResponse, error) {
	return query[GwAllocCheckResponse](ctx, c, "NetworkDriver.GwAllocCheck", in)
}

// AllocateNetwork calls NetworkDriver.AllocateNetwork.
func (c *Client) AllocateNetwork(ctx context.Context, in *AllocateNetworkRequest) (*AllocateNetworkResponse, error) {
	return query[AllocateNetworkResponse](ctx, c, "NetworkDriver.AllocateNetwork", in)
}

// FreeNetwork calls NetworkDriver.FreeNetwork.
func (c *Client) FreeNetwork(ctx context.Context, in *NetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.FreeNetwork", in, nil)
}

// CreateNetwork calls NetworkDriver.CreateNetwork.
func (c *Client) CreateNetwork(ctx context.Context, in *CreateNetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.CreateNetwork", in, nil)
}

// DeleteNetwork calls NetworkDriver.DeleteNetwork.
func (c *Client) DeleteNetwork(ctx context.Context, in *NetworkRequest) error {
	return c.Call(ctx, "NetworkDriver.DeleteNetwork", in, nil)
}

// CreateEndpoint calls NetworkDriver.CreateEndpoint.
func (c *Client) CreateEndpoint(ctx context.Context, in *CreateEndpointRequest) (*CreateEndpointResponse, error) {
	return query[CreateEndpointResponse](ctx, c, "NetworkDriver.CreateEndpoint", in)
}

// DeleteEndpoint calls NetworkDriver.DeleteEndpoint.
func (c *Client) DeleteEndpoint(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.DeleteEndpoint", in, nil)
}

// EndpointOperInfo calls NetworkDriver.EndpointOperInfo.
func (c *Client) EndpointOperInfo(ctx context.Context, in *EndpointRequest) (*EndpointInfo, error) {
	return query[EndpointInfo](ctx, c, "NetworkDriver.EndpointOperInfo", in)
}

// Join calls NetworkDriver.Join.
func (c *Client) Join(ctx context.Context, in *JoinRequest) (*JoinResponse, error) {
	return query[JoinResponse](ctx, c, "NetworkDriver.Join", in)
}

// Leave calls NetworkDriver.Leave.
func (c *Client) Leave(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.Leave", in, nil)
}

// ProgramExternalConnectivity calls NetworkDriver.ProgramExternalConnectivity. If the driver does
// not implement the method, that is not an error.
func (c *Client) ProgramExternalConnectivity(ctx context.Context, in *ConnectivityRequest) error {
	return c.Call(ctx, "NetworkDriver.ProgramExternalConnectivity", in, nil)
}

// RevokeExternalConnectivity calls NetworkDriver.RevokeExternalConnectivity. If the driver does
// not implement the method, that is not an error.
func (c *Client) RevokeExternalConnectivity(ctx context.Context, in *EndpointRequest) error {
	return c.Call(ctx, "NetworkDriver.RevokeExternalConnectivity", in, nil)
}

// DiscoverNew calls NetworkDriver.DiscoverNew.
func (c *Client) DiscoverNew(ctx context.Context, in *DiscoveryRequest) error {
	return c.Call(ctx, "NetworkDriver.DiscoverNew", in, nil)
}

// DiscoverDelete calls NetworkDriver.DiscoverDelete.
func (c *Client) DiscoverDelete(ctx context.Context, in *DiscoveryRequest) error {
	return c.Call(ctx, "NetworkDriver.DiscoverDelete", in, nil)
}

// IPAMCapabilities calls IpamDriver.GetCapabilities. A driver without this method has no
// capabilities.
func (c *Client) IPAMCapabilities(ctx context.Context) (*IPAMCapabilities, error) {
	return query[IPAMCapabilities](ctx, c, "IpamDriver.GetCapabilities", nil)
}

// AddressSpaces calls IpamDriver.GetDefaultAddressSpaces.
func (c *Client) AddressSpaces(ctx context.Context) (*AddressSpaces, error) {
	return query[AddressSpaces](ctx, c, "IpamDriver.GetDefaultAddressSpaces", nil)
}

// RequestPool calls IpamDriver.RequestPool.
func (c *Client) RequestPool(ctx context.Context, in *RequestPoolRequest) (*RequestPoolResponse, error) {
	return query[RequestPoolResponse](ctx, c, "IpamDriver.RequestPool", in)
}

// ReleasePool calls IpamDriver.ReleasePool.
func (c *Client) ReleasePool(ctx context.Context, in *ReleasePoolRequest) error {
	return c.Call(ctx, "IpamDriver.ReleasePool", in, nil)
}

// RequestAddress calls IpamDriver.RequestAddress.
func (c *Client) RequestAddress(ctx context.Context, in *RequestAddressRequest) (*RequestAddressResponse, error) {
	return query[RequestAddressResponse](ctx, c, "IpamDriver.RequestAddress", in)
}

// ReleaseAddress calls IpamDriver.ReleaseAddress.
func (c *Client) ReleaseAddress(ctx context.Context, in *ReleaseAddressRequest) error {
	return c.Call(ctx, "IpamDriver.ReleaseAddress", in, nil)
}
