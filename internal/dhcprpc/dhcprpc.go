// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcprpc is a client for a keeper of DHCP leases. It uses the protocol between the
// reference's plugin `dhcp` and its daemon: Go's net/rpc with gob, over HTTP CONNECT on a unix
// socket. We do not use net/rpc, because it imports net/http (0.35 ms and 4 MB in every plugin
// process). Nor do we use encoding/gob, because it fills its registries before main (0.15 ms and
// 440 allocations, measured with go1.26).
//
// A request contains skel.CmdArgs, and an answer contains a result of version 1.0.0. The
// documentation of encoding/gob defines the format.
package dhcprpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// These are the methods of the keeper. The reference's daemon does not have the last three.
const (
	Service  = "DHCP"
	Allocate = Service + ".Allocate"
	Release  = Service + ".Release"
	Check    = Service + ".Check"   // fails unless the keeper has the lease; never asks a server
	Collect  = Service + ".Collect" // releases leases that a GC configuration does not list
	// Move reports where the interface is now: in the namespace NetNS, under the name in Path. If
	// both are empty, the interface is about to move. The keeper then does not take a missing
	// interface for a deleted one.
	Move = Service + ".Move"
)

// Mark is the header that identifies our keeper in the handshake. A net/rpc client ignores it.
const Mark = "Patchbay-Keeper"

// These are the client's first line and the status line that answers it.
const (
	Handshake = "CONNECT /_goRPC_ HTTP/1.0"
	Connected = "200 Connected to Go RPC"
)

// Args are the arguments of a plugin call. The fields have the names of skel.CmdArgs, because
// gob identifies fields by name.
type Args struct {
	ContainerID, Netns, IfName, Args, Path string

	StdinData []byte // the configuration
}

// ErrDial means that no process listens on the socket, so no keeper runs.
var ErrDial = errors.New("no DHCP lease keeper")

// Client is one connection to a keeper. Only one call may run at a time.
type Client struct {
	Ours bool // the keeper is ours and has more methods

	conn net.Conn
	dec  *gobDecoder
	seq  uint64
}

// dialTime limits the time to connect and for the handshake. A running keeper answers in
// microseconds, but systemd may have to start the keeper first.
const dialTime = 10 * time.Second

// Dial connects to the keeper at a path and does the handshake. If no process listens there,
// the error wraps ErrDial.
func Dial(ctx context.Context, path string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrDial, err)
	}
	c := &Client{conn: conn}
	if err := c.handshake(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("shake hands at %s: %w", path, err), conn.Close())
	}
	return c, nil
}

func (c *Client) handshake(ctx context.Context) error {
	defer c.until(ctx)()
	if _, err := io.WriteString(c.conn, Handshake+"\n\n"); err != nil {
		return cause(ctx, err)
	}
	r := bufio.NewReader(c.conn)
	status, err := line(r)
	if err != nil {
		return cause(ctx, err)
	}
	if _, text, _ := strings.Cut(status, " "); text != Connected {
		return fmt.Errorf("unexpected answer %.80q", status)
	}
	for {
		header, err := line(r)
		if err != nil || header == "" {
			c.dec = newDecoder(r)
			return cause(ctx, err)
		}
		key, _, _ := strings.Cut(header, ":")
		c.Ours = c.Ours || strings.EqualFold(key, Mark)
	}
}

// line reads one line of the handshake. The line must fit into the buffer.
func line(r *bufio.Reader) (string, error) {
	b, err := r.ReadSlice('\n')
	return strings.TrimRight(string(b), "\r\n"), err
}

// until interrupts reads and writes when ctx ends.
func (c *Client) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // it ends with the connection
}

// cause returns the error of ctx if ctx has ended, because that error names the reason. Otherwise
// it returns err.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close ends the connection. If an allocation is running, our keeper abandons it.
func (c *Client) Close() { c.conn.Close() } //nolint:errcheck // no call is open

// Call calls a method. The result is nil if the method returns none.
func (c *Client) Call(ctx context.Context, method string, a *Args) (*spec.Result, error) {
	defer c.until(ctx)()
	body, err := c.call(method, a)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the keeper closed the connection: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("error calling %s: %w", method, cause(ctx, err))
	}
	if method == Release || method == Collect || method == Move {
		return nil, nil
	}
	return decodeResult(body)
}

func (c *Client) call(method string, a *Args) (gobFields, error) {
	if _, err := c.conn.Write(encodeCall(method, c.seq, a)); err != nil {
		return nil, err
	}
	head, err := c.dec.next()
	if err != nil {
		return nil, err
	}
	c.seq++
	body, err := c.dec.next()
	if text := get[string](head, "Error"); text != "" {
		return nil, errors.New(text)
	}
	return body, err
}

// encodeCall encodes a net/rpc request and its body. The first call of a stream also defines
// the types.
func encodeCall(method string, seq uint64, a *Args) []byte {
	var w gobWriter
	const request, args = 65, 66
	if seq == 0 {
		w.define(request, "Request", []field{{"ServiceMethod", gobString}, {"Seq", gobUint}})
	}
	w.value(request, method, seq)
	if seq == 0 {
		w.define(args, "CmdArgs", []field{{"ContainerID", gobString}, {"Netns", gobString}, {"IfName", gobString},
			{"Args", gobString}, {"Path", gobString}, {"StdinData", gobBytes}})
	}
	w.value(args, a.ContainerID, a.Netns, a.IfName, a.Args, a.Path, string(a.StdinData))
	return w.out
}

func decodeResult(r gobFields) (*spec.Result, error) {
	out := &spec.Result{CNIVersion: get[string](r, "CNIVersion")}
	for _, ip := range list[gobFields](r, "IPs") {
		p, err := prefix(get[gobFields](ip, "Address"))
		if err != nil {
			return nil, err
		}
		out.IPs = append(out.IPs, spec.IPConfig{Address: p, Gateway: addr(get[[]byte](ip, "Gateway"))})
	}
	for _, r := range list[gobFields](r, "Routes") {
		p, err := prefix(get[gobFields](r, "Dst"))
		if err != nil {
			return nil, err
		}
		out.Routes = append(out.Routes, spec.Route{
			Dst: p, GW: addr(get[[]byte](r, "GW")), MTU: r.int("MTU"), AdvMSS: r.int("AdvMSS"),
			Priority: r.int("Priority"), Table: r.intPtr("Table"), Scope: r.intPtr("Scope"),
		})
	}
	if d := get[gobFields](r, "DNS"); d != nil {
		out.DNS = spec.DNS{Nameservers: list[string](d, "Nameservers"), Domain: get[string](d, "Domain"), Search: list[string](d, "Search"), Options: list[string](d, "Options")}
	}
	return out, nil
}

// addr converts a net.IP. An empty one becomes the invalid address.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

// prefix converts a net.IPNet. An IPv4 network may have 16 bytes.
func prefix(r gobFields) (netip.Prefix, error) {
	a, mask := addr(get[[]byte](r, "IP")), get[[]byte](r, "Mask")
	if a.Is4() && len(mask) == 16 {
		mask = mask[12:]
	}
	bits, size := net.IPMask(mask).Size()
	if !a.IsValid() || size != a.BitLen() {
		return netip.Prefix{}, fmt.Errorf("malformed network %x/%x in the keeper's answer", get[[]byte](r, "IP"), mask)
	}
	return netip.PrefixFrom(a, bits), nil
}
