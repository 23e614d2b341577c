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
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/spec"
)

// place is one network namespace of the demo: the host, a container, or the outside world. It
// ends with the process.
type place struct {
	*nl.Conn
	name    string
	path    string       // empty for the host
	addrs   []netip.Addr // one per family, IPv4 first
	gateway []netip.Addr // the gateway of each address
	server  net.Listener
}

// newPlace creates a network namespace and sets its loopback interface up.
func newPlace(p paths.Paths, name string) (*place, error) {
	pl := &place{name: name, path: filepath.Join(p.NetNS, name)}
	if err := netns.Create(pl.path); err != nil {
		return nil, err
	}
	ns, err := netns.Open(pl.path)
	if err == nil {
		pl.Conn, err = nl.In(ns, p.Proc)
	}
	if err == nil {
		err = setUp(pl.Conn, "lo")
	}
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return pl, nil
}

// setUp adds addresses to a link and sets the link up. It does not wait for duplicate address
// detection, which takes a second for IPv6.
func setUp(c *nl.Conn, link string, prefixes ...netip.Prefix) error {
	env := &netstate.Env{Host: c}
	for _, p := range prefixes {
		addr := netstate.Addr{Where: netstate.Host, Link: link, Prefix: p}
		if _, err := addr.Ensure(context.Background(), env); err != nil {
			return err
		}
	}
	_, err := netstate.Up{Where: netstate.Host, Link: link}.Ensure(context.Background(), env)
	return err
}

// connect makes a veth pair with the end link in p and the end peer in the other place. In each
// subnet, link gets the first address and peer the second.
func (p *place) connect(to *place, link, peer string, subnets []netip.Prefix) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(to.NS.Fd())}
	if err := p.LinkAdd(veth); err != nil {
		return fmt.Errorf("make %s: %w", link, err)
	}
	var near, far []netip.Prefix
	for _, s := range subnets {
		a := s.Addr().Next()
		near, far = append(near, netip.PrefixFrom(a, s.Bits())), append(far, netip.PrefixFrom(a.Next(), s.Bits()))
		p.addrs, to.addrs = append(p.addrs, a), append(to.addrs, a.Next())
	}
	return errors.Join(setUp(p.Conn, link, near...), setUp(to.Conn, peer, far...))
}

func (p *place) attachment() chain.Attachment {
	return chain.Attachment{ContainerID: "demo-" + p.name, NetNS: p.path, IfName: "eth0"}
}

// learn stores the addresses and gateways in the result of an ADD.
func (p *place) learn(r *spec.Result) {
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.Addr())
		p.gateway = append(p.gateway, ip.Gateway)
	}
}

// serve listens on a port and answers every connection with the client's address. The socket
// stays in the namespace in which it was created, whatever thread serves it.
func (p *place) serve(port int) error {
	err := p.Do(func() (err error) {
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

// patience limits the time of one connection. Within one machine an answer takes less than a
// millisecond.
const patience = 2 * time.Second

// ask connects to a server from this namespace, and returns the client address that the server
// saw.
func (p *place) ask(ctx context.Context, to netip.AddrPort) (seen netip.Addr, err error) {
	var conn net.Conn
	err = p.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", to.String())
		return err
	})
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
	client, err := netip.ParseAddrPort(string(text))
	if err != nil {
		return seen, errors.Join(errors.New("the server's answer is no address"), err)
	}
	return client.Addr().Unmap(), nil
}
