// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

// engine asks Docker. The driver never uses it while Docker waits for a call: a dockerd that is
// starting holds its locks and answers no request.
type engine interface {
	root(context.Context) (string, error)
	networks(context.Context) ([]engineNetwork, error)
	// endpoints returns the endpoints of a network by their ids, or nil if the network does not
	// exist.
	endpoints(ctx context.Context, network string) (map[string]engineEndpoint, error)
}

// engineNetwork is one of Docker's networks.
type engineNetwork struct {
	ID     string `json:"Id"`
	Driver string
	IPAM   struct{ Options map[string]string }
}

// engineEndpoint is an endpoint of a network, with the addresses that Docker has for it.
type engineEndpoint struct {
	mac   string       // "" if the driver set no MAC address
	addrs []netip.Addr // at most one per family
}

// httpEngine asks dockerd with three requests: GET /info, /networks and /networks/ID. The path
// has no version, and every version answers them alike. So no client library is needed.
type httpEngine struct {
	base string
	http *http.Client
}

// engineTime limits one request. maxAnswer limits an answer, in bytes.
const (
	engineTime = 10 * time.Second
	maxAnswer  = 64 << 20
)

// newEngine returns an engine for unix:///PATH or tcp://HOST:PORT (without TLS), as in
// DOCKER_HOST. It does not connect yet.
func newEngine(host string) (*httpEngine, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("docker host: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	c := &httpEngine{base: "http://docker", http: &http.Client{Transport: transport, Timeout: engineTime}}
	switch path := u.Path; {
	case u.Scheme == "unix" && u.Host == "" && path != "":
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	case u.Scheme == "tcp" && u.Port() != "" && strings.Trim(path, "/") == "":
		c.base = "http://" + u.Host
	default:
		return nil, fmt.Errorf("docker host %q: want unix:///PATH or tcp://HOST:PORT", host)
	}
	return c, nil
}

// root returns dockerd's data root. No two daemons of a host share a data root.
func (c *httpEngine) root(ctx context.Context) (string, error) {
	var info struct{ DockerRootDir string }
	err := c.get(ctx, "/info", &info)
	if err == nil && info.DockerRootDir == "" {
		err = errors.New("ask docker: /info has no DockerRootDir")
	}
	return info.DockerRootDir, err
}

// networks lists all networks. Docker always has its built-in networks, so an empty list is an
// error.
func (c *httpEngine) networks(ctx context.Context) (list []engineNetwork, err error) {
	if err := c.get(ctx, "/networks", &list); err != nil {
		return nil, err
	}
	if len(list) == 0 || slices.ContainsFunc(list, func(n engineNetwork) bool { return n.ID == "" }) {
		return nil, errors.New("ask docker: /networks has no network, or one without an id")
	}
	return list, nil
}

func (c *httpEngine) endpoints(ctx context.Context, network string) (map[string]engineEndpoint, error) {
	var n struct {
		ID         string `json:"Id"`
		Containers map[string]struct{ EndpointID, MacAddress, IPv4Address, IPv6Address string }
	}
	err := c.get(ctx, "/networks/"+url.PathEscape(network), &n)
	switch {
	case errors.Is(err, errNotFound):
		return nil, nil //nolint:nilnil // documented
	case err != nil:
		return nil, err
	case n.ID != network:
		return nil, fmt.Errorf("ask docker: it answers %q for network %q", n.ID, network)
	}
	all := make(map[string]engineEndpoint, len(n.Containers))
	for _, e := range n.Containers {
		out := engineEndpoint{mac: e.MacAddress}
		for _, text := range []string{e.IPv4Address, e.IPv6Address} { // ADDRESS/LENGTH, or empty
			if text == "" {
				continue
			}
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("ask docker: endpoint %.12s: %w", e.EndpointID, err)
			}
			out.addrs = append(out.addrs, p.Addr())
		}
		all[e.EndpointID] = out
	}
	return all, nil
}

var errNotFound = errors.New("no such object")

func (c *httpEngine) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask docker: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask docker: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	body := io.LimitReader(resp.Body, maxAnswer)
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("ask docker: %s: %w", path, errNotFound)
	default:
		text, _ := io.ReadAll(io.LimitReader(body, 512))
		return fmt.Errorf("ask docker: %s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("ask docker: %s: %w", path, err)
	}
	return nil
}

// dockerView holds what Docker has. The driver asks Docker before it judges anything. It holds no
// lock meanwhile, because Docker may be waiting for a call that waits for this lock. If Docker
// was not asked, the view is nil.
type dockerView struct {
	before    time.Time // Docker may not yet know objects that changed later
	networks  []engineNetwork
	endpoints map[string]map[string]engineEndpoint // endpoints of each network; those of a missing network are not known
	addresses []engineEndpoint                     // endpoints that may have addresses from our IPAM driver
	silent    bool                                 // some addresses are not known
}

// inDoubt is an age. Docker may not yet list objects that are younger, because it stores a
// network only after the driver has created the network.
const inDoubt = 10 * time.Second

// errNotAsked means that Docker did not answer.
var errNotAsked = errors.New("Docker was not asked what it has")

// askDocker asks Docker what it has. If one request fails, the error says so, and that part of
// the view is unknown.
func (d *Driver) askDocker(ctx context.Context, grace time.Duration) (*dockerView, error) {
	s := &dockerView{before: time.Now().Add(-max(grace, d.opts.doubt)), endpoints: map[string]map[string]engineEndpoint{}}
	err := d.isOurs(ctx)
	if err == nil {
		s.networks, err = d.opts.engine.networks(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotAsked, err)
	}
	ours, _ := d.state.Endpoints.List() // the collector reports endpoints that it cannot read
	var errs []error
	for i := range s.networks {
		errs = append(errs, s.askEndpoints(ctx, d.opts.engine, &s.networks[i], ours))
	}
	return s, errors.Join(errs...)
}

// isOurs returns an error if the answers come from another daemon of this host, or from a program
// that imitates Docker. By such answers, the driver would delete all our networks.
func (d *Driver) isOurs(ctx context.Context) error {
	root, err := d.opts.engine.root(ctx)
	if err == nil && resolved(root) != resolved(d.opts.DataRoot) {
		return fmt.Errorf("the daemon that answers has its data in %s, not in %s (--docker, --data-root)", root, d.opts.DataRoot)
	}
	return err
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// askEndpoints asks for the endpoints of a network. It asks only if the network has our endpoints,
// or may use our addresses.
func (s *dockerView) askEndpoints(ctx context.Context, docker engine, n *engineNetwork, ours []*state.Endpoint) error {
	addresses := n.IPAM.Options[optNetwork] != "" || n.IPAM.Options[optConf] != "" // RequestPool refuses options other than these
	if !addresses && !slices.ContainsFunc(ours, func(e *state.Endpoint) bool { return e.Network == n.ID && s.knows(e.Changed) }) {
		return nil
	}
	theirs, err := docker.endpoints(ctx, n.ID)
	if err == nil && theirs != nil {
		s.endpoints[n.ID] = theirs
	}
	if addresses {
		s.silent = s.silent || err != nil
		s.addresses = slices.AppendSeq(s.addresses, maps.Values(theirs))
	}
	return err
}

// knows reports whether an object has not changed for so long that Docker must know it.
func (s *dockerView) knows(then time.Time) bool { return then.Before(s.before) }

// listing returns whether Docker has an object. listed says whether Docker lists it. changed is
// the time of its last change.
func (s *dockerView) listing(listed bool, changed time.Time) listing {
	switch {
	case listed:
		return has
	case s.knows(changed):
		return hasNot
	}
	return notAsked
}

// listed returns whether Docker has an object. Docker has it if shows returns true for one of
// Docker's networks.
func (s *dockerView) listed(changed time.Time, shows func(*engineNetwork) bool) listing {
	if s == nil {
		return notAsked
	}
	return s.listing(slices.ContainsFunc(s.networks, func(n engineNetwork) bool { return shows(&n) }), changed)
}

func (s *dockerView) ofNetwork(n *state.Network) listing {
	return s.listed(n.Since, func(x *engineNetwork) bool { return x.ID == n.ID })
}

// ofPool returns whether Docker has a network, of any driver, that was created with the same
// --ipam-opt.
func (s *dockerView) ofPool(p *state.Pool) listing {
	return s.listed(p.Since, func(n *engineNetwork) bool {
		o := n.IPAM.Options
		return o[optNetwork] == p.Network || len(p.Options) > 0 && maps.Equal(o, p.Options) || len(p.Options) == 0 && o[optConf] != ""
	})
}

// ofEndpoint returns whether Docker has an endpoint. It returns notAsked if Docker does not
// have the network, because then the network is judged as a whole.
func (s *dockerView) ofEndpoint(e *state.Endpoint) listing {
	if s == nil || s.endpoints[e.Network] == nil {
		return notAsked
	}
	_, listed := s.endpoints[e.Network][e.ID]
	return s.listing(listed, e.Changed)
}

// ofLease returns whether a container uses the lease. The container may be on a network of any
// driver. Some drivers show no MAC address, so ofLease compares the addresses too.
func (s *dockerView) ofLease(l *state.Allocation) listing {
	if s == nil || s.silent {
		return notAsked
	}
	return s.listing(slices.ContainsFunc(s.addresses, func(e engineEndpoint) bool {
		return leaseID(l.Network, e.mac) == l.ID || slices.ContainsFunc(e.addrs, func(a netip.Addr) bool { return slices.Contains(l.Given, a) })
	}), l.Since)
}
