// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcprpc speaks to a keeper of DHCP leases as the reference's plugin
// `dhcp` speaks to its daemon: Go's net/rpc with gob, over HTTP CONNECT on a
// unix socket. It is written by hand because net/rpc pulls net/http (0.35 ms and
// 4 MB in every plugin process) and encoding/gob fills its registries before
// main (0.15 ms and 440 allocations, measured with go1.26).
//
// What is encoded: skel.CmdArgs in, a 1.0.0 result out. The format of gob is
// fixed by the documentation of encoding/gob.
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

// Methods of the keeper. The last three are ours: the reference's daemon does not have
// them.
const (
	Service  = "DHCP"
	Allocate = Service + ".Allocate"
	Release  = Service + ".Release"
	Check    = Service + ".Check"   // fails unless the lease is held; never asks a server
	Collect  = Service + ".Collect" // releases what a GC configuration does not list
	// Move reports that the interface is in NetNS now, under the name in Path. With neither
	// it reports that the interface is about to be moved, so a missing interface is not
	// gone.
	Move = Service + ".Move"
)

// Mark is the header that identifies our keeper in the handshake. A net/rpc client reads
// the header and ignores it.
const Mark = "Patchbay-Keeper"

// Handshake is the client's first line and the status that answers it.
const (
	Handshake = "CONNECT /_goRPC_ HTTP/1.0"
	Connected = "200 Connected to Go RPC"
)

// Args are the arguments of a plugin call, with the names of skel.CmdArgs, by which gob
// identifies fields.
type Args struct {
	ContainerID, Netns, IfName, Args, Path string

	StdinData []byte // the configuration
}

// ErrDial is wrapped when no process listens on the socket: no keeper runs.
var ErrDial = errors.New("no DHCP lease keeper")

// Client is one connection. Make one call at a time.
type Client struct {
	Ours bool // it is our keeper, which has more methods

	conn net.Conn
	dec  *gobDecoder
	seq  uint64
}

// dialTime bounds connecting and the handshake, which a running keeper answers in
// microseconds; systemd may have to start it first.
const dialTime = 10 * time.Second

// Dial connects to the keeper at a path and shakes hands. When no process listens there,
// errors.Is(err, ErrDial) is true.
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

// line reads a line of the handshake, of at most a buffer's length.
func line(r *bufio.Reader) (string, error) {
	b, err := r.ReadSlice('\n')
	return strings.TrimRight(string(b), "\r\n"), err
}

// until interrupts reads and writes when ctx ends.
func (c *Client) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // it ends with the connection
}

// cause prefers the context's error, which names the reason of a deadline.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close ends the connection. Our keeper abandons an allocation that is under way.
func (c *Client) Close() { c.conn.Close() } //nolint:errcheck // no call is open

// Call calls a method. The result is nil for methods without one.
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

func (c *Client) call(method string, a *Args) (record, error) {
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

// encodeCall is a net/rpc request and its body. The first call of a stream defines the
// types, once.
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

func decodeResult(r record) (*spec.Result, error) {
	out := &spec.Result{CNIVersion: get[string](r, "CNIVersion")}
	for _, ip := range list[record](r, "IPs") {
		p, err := prefix(get[record](ip, "Address"))
		if err != nil {
			return nil, err
		}
		out.IPs = append(out.IPs, spec.IPConfig{Address: p, Gateway: addr(get[[]byte](ip, "Gateway"))})
	}
	for _, r := range list[record](r, "Routes") {
		p, err := prefix(get[record](r, "Dst"))
		if err != nil {
			return nil, err
		}
		out.Routes = append(out.Routes, spec.Route{
			Dst: p, GW: addr(get[[]byte](r, "GW")), MTU: r.int("MTU"), AdvMSS: r.int("AdvMSS"),
			Priority: r.int("Priority"), Table: r.intPtr("Table"), Scope: r.intPtr("Scope"),
		})
	}
	if d := get[record](r, "DNS"); d != nil {
		out.DNS = spec.DNS{Nameservers: list[string](d, "Nameservers"), Domain: get[string](d, "Domain"), Search: list[string](d, "Search"), Options: list[string](d, "Options")}
	}
	return out, nil
}

// addr is a net.IP; an empty one gives the invalid address.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

// prefix is a net.IPNet. An IPv4 network may be in its 16 byte form.
func prefix(r record) (netip.Prefix, error) {
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
