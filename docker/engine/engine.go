// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine asks a Docker daemon for its networks. It uses three requests that every
// version answers alike (GET /info, /networks, /networks/ID, without a version in the
// path), so it needs no client library.
//
// A daemon that boots holds its locks and answers no request: the caller needs a time
// limit, and must not itself be needed by the daemon at that time.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// limit bounds one request; maxAnswer bounds an answer, in bytes.
const (
	limit     = 10 * time.Second
	maxAnswer = 64 << 20
)

// Client asks one daemon. Several goroutines may use it at once.
type Client struct {
	base string
	http *http.Client
}

// New returns a client for unix:///PATH or tcp://HOST:PORT (without TLS), as in
// DOCKER_HOST. It does not connect yet.
func New(host string) (*Client, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("docker host: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	c := &Client{base: "http://docker", http: &http.Client{Transport: transport, Timeout: limit}}
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

// Network is one of Docker's networks.
type Network struct {
	ID     string `json:"Id"`
	Name   string
	Driver string
	IPAM   struct {
		Driver  string
		Options map[string]string
	}
}

// Root is the daemon's data root: it distinguishes the daemons of a host.
func (c *Client) Root(ctx context.Context) (string, error) {
	var info struct{ DockerRootDir string }
	if err := c.get(ctx, "/info", &info); err != nil {
		return "", err
	}
	if info.DockerRootDir == "" {
		return "", errors.New("ask docker: /info has no DockerRootDir")
	}
	return info.DockerRootDir, nil
}

// Networks lists all networks. Every daemon has networks of its own, so an empty list is
// an error.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	var list []Network
	if err := c.get(ctx, "/networks", &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("ask docker: /networks has no network")
	}
	for _, n := range list {
		if n.ID == "" {
			return nil, errors.New("ask docker: /networks has a network without an id")
		}
	}
	return list, nil
}

// Endpoint is an endpoint of a network, with the addresses that Docker has for it.
type Endpoint struct {
	MAC   string       // "" if the driver set none
	Addrs []netip.Addr // at most one of each family
}

// Endpoints are those of a network, by their ids. known is false when the network does
// not exist.
func (c *Client) Endpoints(ctx context.Context, network string) (all map[string]Endpoint, known bool, err error) {
	var n struct {
		ID         string `json:"Id"`
		Containers map[string]struct{ EndpointID, MacAddress, IPv4Address, IPv6Address string }
	}
	err = c.get(ctx, "/networks/"+url.PathEscape(network), &n)
	if errors.Is(err, errNotFound) {
		return nil, false, nil
	}
	if err == nil && n.ID != network {
		err = fmt.Errorf("ask docker: it answers %q for network %q", n.ID, network)
	}
	if err != nil {
		return nil, false, err
	}
	all = make(map[string]Endpoint, len(n.Containers))
	for _, e := range n.Containers {
		addrs, err := addresses(e.IPv4Address, e.IPv6Address)
		if err != nil {
			return nil, false, fmt.Errorf("ask docker: endpoint %.12s: %w", e.EndpointID, err)
		}
		all[e.EndpointID] = Endpoint{e.MacAddress, addrs}
	}
	return all, true, nil
}

// addresses parses ADDRESS/LENGTH; empty texts are skipped.
func addresses(texts ...string) (out []netip.Addr, err error) {
	for _, text := range texts {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p.Addr())
	}
	return out, nil
}

var errNotFound = errors.New("no such object")

func (c *Client) get(ctx context.Context, path string, out any) error {
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
