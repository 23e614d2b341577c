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

// Change replaces the address and routes of one grant by those of another. It does so only if
// the interface has the first address, which had reports; the caller of ADD may not have set the
// address yet. An empty grant has no address, and counts as being on every interface. Change
// adds the new address before it removes the old one. It leaves alone what both grants have,
// because a later plugin (sbr, vrf) may have moved the routes to another table.
func (p *Place) Change(from, to *Lease) (had bool, err error) {
	gone, come := from.without(to), to.without(from)
	if from.Address != to.Address {
		gone, come = from, to // the kernel removes the routes with the address
	} else if len(gone.Routes) == 0 && len(come.Routes) == 0 {
		return true, nil
	}
	err = p.with(func(conn *nl.Conn, link netlink.Link) error {
		if had, err = holds(conn, link, from.Address); !had {
			return err
		}
		if err := addAddr(conn, link, to.Address); err != nil {
			return err
		}
		// When the first address of a subnet is removed, the kernel also removes the other
		// addresses of that subnet. So add the new address again.
		err := errors.Join(gone.remove(conn, link), come.add(conn, link))
		if to.Address.IsValid() && from.Address != to.Address {
			err = errors.Join(err, conn.Announce(link, []netip.Addr{to.Address.Addr()}))
		}
		return err
	})
	return had, err
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

// without returns a copy of g that lacks the routes which are also in keep.
func (g *Lease) without(keep *Lease) *Lease {
	out := &Lease{Gateway: g.Gateway}
	if g.Address != keep.Address {
		out.Address = g.Address
	}
	for _, r := range g.Routes {
		if !keep.has(g.via(r)) {
			out.Routes = append(out.Routes, r)
		}
	}
	return out
}

func (g *Lease) has(r spec.Route) bool {
	for _, own := range g.Routes {
		own = g.via(own)
		if own.Dst == r.Dst && own.GW == r.GW && own.Priority == r.Priority {
			return true
		}
	}
	return false
}

// via returns a route. If the route has no gateway, via gives it the grant's, as the plugins do.
func (g *Lease) via(r spec.Route) spec.Route {
	if !r.GW.IsValid() {
		r.GW = g.Gateway
	}
	return r
}

func (g *Lease) add(conn *nl.Conn, link netlink.Link) error {
	if err := addAddr(conn, link, g.Address); err != nil {
		return err
	}
	for _, r := range g.Routes {
		r = g.via(r)
		if err := conn.RouteReplace(route(link, r)); err != nil {
			return fmt.Errorf("set route %s via %s dev %s: %w", r.Dst, r.GW, link.Attrs().Name, err)
		}
	}
	return nil
}

func (g *Lease) remove(conn *nl.Conn, link netlink.Link) error {
	var errs []error
	for _, r := range g.Routes {
		if err := conn.RouteDel(route(link, g.via(r))); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	if g.Address.IsValid() {
		if err := conn.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(g.Address)}); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove address %s: %w", g.Address, err))
		}
	}
	return errors.Join(errs...)
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

func route(link netlink.Link, r spec.Route) *netlink.Route {
	out := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: nl.IPNet(r.Dst.Masked()), Priority: r.Priority}
	if r.GW.IsValid() && !r.GW.IsUnspecified() {
		out.Gw = r.GW.AsSlice()
	}
	if r.Scope != nil {
		out.Scope = netlink.Scope(*r.Scope)
	}
	return out
}
