// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// place is a namespace of the demo. A place without a path is the host.
type place struct {
	name    string
	path    string
	ns      *netns.NS
	conn    *nl.Conn
	worker  *netns.Worker
	addrs   []netip.Addr // one per family
	gateway []netip.Addr // of each address
	server  net.Listener
}

// newPlace creates a namespace and sets its loopback up.
func newPlace(p paths.Paths, name string) (*place, error) {
	pl := &place{name: name, path: filepath.Join(p.NetNS, name)}
	if err := netns.Create(pl.path); err != nil {
		return nil, err
	}
	for _, open := range []func() error{
		func() (err error) { pl.ns, err = netns.Open(pl.path); return err },
		func() error {
			ns, err := netns.Open(pl.path)
			if err != nil {
				return err
			}
			pl.conn, err = nl.In(ns, p.Proc)
			return err
		},
		func() error { pl.worker = pl.ns.NewWorker(); return setUp(pl.conn, "lo") },
	} {
		if err := open(); err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
	}
	return pl, nil
}

func (p *place) close() {
	if p.server != nil {
		p.server.Close() //nolint:errcheck // ends the server
	}
	p.worker.Close()
	p.conn.Close()
	p.ns.Close() //nolint:errcheck // read only
	_ = netns.Delete(p.path)
}

func (p *place) attachment() chain.Attachment {
	return chain.Attachment{ContainerID: "demo-" + p.name, NetNS: p.path, IfName: "eth0"}
}

// learn stores the addresses of an ADD's result.
func (p *place) learn(r *spec.Result) {
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.Addr())
		p.gateway = append(p.gateway, ip.Gateway)
	}
}

// pick returns the address of a family.
func pick(addrs []netip.Addr, v4 bool) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// serve answers every connection to a port with the address it comes from. The socket
// stays in the namespace in which it was created, whatever thread serves it.
func (p *place) serve(port int) error {
	err := p.worker.Do(func() (err error) {
		p.server, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve in %s: %w", p.name, err)
	}
	go func() {
		for {
			conn, err := p.server.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().String())
			_ = conn.Close()
		}
	}()
	return nil
}

// patience bounds one connection. On one machine an answer takes less than a
// millisecond.
const patience = 2 * time.Second

// ask connects from the namespace and returns the client address that the server saw. A
// nil place is the host.
func (p *place) ask(ctx context.Context, to netip.AddrPort) (seen netip.AddrPort, err error) {
	var conn net.Conn
	dial := func() (err error) {
		conn, err = (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", to.String())
		return err
	}
	if p == nil {
		err = dial()
	} else {
		err = p.worker.Do(dial)
	}
	if err != nil {
		return seen, err
	}
	defer conn.Close() //nolint:errcheck // read only
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return seen, err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 100))
	if err != nil {
		return seen, err
	}
	seen, err = netip.ParseAddrPort(string(text))
	if err != nil {
		return seen, errors.Join(errors.New("the server's answer is no address"), err)
	}
	return netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port()), nil
}

// trial is one path to prove: the server must see the client with the address want.
type trial struct {
	what     string
	from     *place // nil is the host
	fromName string
	to       netip.AddrPort
	want     netip.Addr // invalid: any
	why      string
}

// trials are the paths of one address family.
func (d *demo) trials(v4 bool) []trial {
	web, client, world := pick(d.web.addrs, v4), pick(d.client.addrs, v4), pick(d.world.addrs, v4)
	uplink, gateway := pick(d.uplinkAddrs(), v4), pick(d.web.gateway, v4)
	published := netip.AddrPortFrom(uplink, publishedPort)
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), publishedPort)
	out := []trial{
		{"container to container", d.client, "client", netip.AddrPortFrom(web, webPort), client, ""},
		{"host to container", nil, "host", netip.AddrPortFrom(web, webPort), gateway, ""},
		{"published port, from outside", d.world, "world", published, world, "the client's own address"},
		{"published port, from a container", d.client, "client", published, netip.Addr{}, ""},
		{"published port, from the host", nil, "host", published, netip.Addr{}, ""},
		{"published port, on localhost", nil, "host", local, gateway, ""},
		{"way out", d.client, "client", netip.AddrPortFrom(world, worldPort), uplink, "masqueraded"},
	}
	if !v4 {
		out = slices.DeleteFunc(out, func(t trial) bool { return t.to == local })
	}
	return out
}

// run tries the path.
func (t *trial) run(ctx context.Context) proof {
	p := proof{What: t.what, From: t.fromName, To: t.to.String(), Why: t.why}
	seen, err := t.from.ask(ctx, t.to)
	switch {
	case err != nil:
		p.Err = err.Error()
	case t.want.IsValid() && seen.Addr() != t.want:
		p.Err = fmt.Sprintf("the server saw %s, not %s", seen.Addr(), t.want)
	default:
		p.Seen = seen.Addr().String()
	}
	return p
}
