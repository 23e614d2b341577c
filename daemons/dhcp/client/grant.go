// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package client is the DHCP client of one attachment, for both versions of DHCP. V4 and V6 send
// requests to servers. A Lease is what a server has granted. A Place is the interface in the
// container's namespace. The client sends requests through this interface, which also gets the
// address. Each request is one try, which opens its sockets in the namespace and closes them
// afterwards.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// Lease is one address with the options that came with it. It never changes.
type Lease struct {
	Raw     []byte // the server's message, from which Protocol.Parse derives the other fields
	Address netip.Prefix
	Gateway netip.Addr // for routes without a gateway of their own; may be invalid
	Routes  []spec.Route
	DNS     spec.DNS

	// These are times since the grant. At T1 the client asks the same server again, and at T2 any
	// server. After Valid the address is no longer ours. T1 <= T2 <= Valid.
	T1, T2, Valid time.Duration
}

// ErrNak means that a server refuses the address. The client must not use the address any more.
var ErrNak = errors.New("the server refuses the address")

// ErrSilent means that no server answered in time.
var ErrSilent = errors.New("no DHCP server answered")

// Protocol is DHCPv4 or DHCPv6 for one attachment. Each function tries once; wait limits the time
// of that try.
type Protocol interface {
	// Parse parses a message that a server sent earlier.
	Parse(raw []byte) (*Lease, error)
	// Acquire asks any server for an address.
	Acquire(ctx context.Context, p *Place, wait time.Duration) (*Lease, error)
	// Extend asks the server that granted g for more time, or any server if rebind is set.
	Extend(ctx context.Context, p *Place, g *Lease, rebind bool, wait time.Duration) (*Lease, error)
	// Release gives the address of g back. It does not wait for an answer.
	Release(ctx context.Context, p *Place, g *Lease) error
}

// Order makes T1 and T2 valid. If the server sent none, or invalid ones, Order sets them to t1
// and t2 times Valid.
func (g *Lease) Order(t1, t2 float64) {
	if g.T2 <= 0 || g.T2 > g.Valid {
		g.T2 = time.Duration(float64(g.Valid) * t2)
	}
	if g.T1 <= 0 || g.T1 > g.T2 {
		g.T1 = min(time.Duration(float64(g.Valid)*t1), g.T2)
	}
}

// Holds reports whether the interface has an address.
func (p *Place) Holds(a netip.Prefix) (had bool, err error) {
	err = p.with(func(conn *nl.Conn, link netlink.Link) error {
		had, err = holds(conn, link, a)
		return err
	})
	return had, err
}

// holds reports whether an interface has an address. For an invalid address it returns true.
func holds(conn *nl.Conn, link netlink.Link, a netip.Prefix) (bool, error) {
	if !a.IsValid() {
		return true, nil
	}
	addrs, err := conn.Addrs(link.Attrs().Index)
	for _, have := range addrs {
		if have.Prefix == a {
			return true, nil
		}
	}
	return false, err
}

// addAddr adds an address, if it is valid. The kernel does not look for duplicates, because the
// server gives an address to only one client.
func addAddr(conn *nl.Conn, link netlink.Link, a netip.Prefix) error {
	if !a.IsValid() {
		return nil
	}
	msg := &netlink.Addr{IPNet: nl.IPNet(a)}
	if a.Addr().Is6() {
		msg.Flags = unix.IFA_F_NODAD
	}
	if err := conn.AddrAdd(link, msg); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}
