// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package client is the DHCP client of one attachment, for both versions of DHCP: what a
// server can be asked (V4, V6), what it has granted (Grant), and the interface in the
// container's namespace (Place) through which it is asked and which gets the address. Each
// request is one try over sockets that are opened in the namespace and closed afterwards.
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

// Grant is one address with its options. It is a value and never changes.
type Grant struct {
	Raw     []byte // the server's message, from which Protocol.Parse makes the rest
	Address netip.Prefix
	Gateway netip.Addr // of routes that name none; or invalid
	Routes  []spec.Route
	DNS     spec.DNS

	// Since the grant: when to ask the same server, when to ask any server, and when the
	// address is no longer ours. T1 <= T2 <= Valid.
	T1, T2, Valid time.Duration
}

// ErrNak is wrapped when a server refuses the address: it must not be used any more.
var ErrNak = errors.New("the server refuses the address")

// ErrSilent is wrapped when no server answered in time.
var ErrSilent = errors.New("no DHCP server answered")

// Protocol is DHCPv4 or DHCPv6 for one attachment. Every function is one try; wait limits
// it.
type Protocol interface {
	// Parse reads a message that a server sent earlier.
	Parse(raw []byte) (*Grant, error)
	// Acquire asks any server for an address.
	Acquire(ctx context.Context, p *Place, wait time.Duration) (*Grant, error)
	// Extend asks the server that granted g for more time (renew), or any server (rebind).
	Extend(ctx context.Context, p *Place, g *Grant, rebind bool, wait time.Duration) (*Grant, error)
	// Release gives g back. It waits for no answer.
	Release(ctx context.Context, p *Place, g *Grant) error
}

// Order gives T1 and T2 valid values: the given parts of the validity where a server sent
// none or invalid ones.
func (g *Grant) Order(t1, t2 float64) {
	if g.T2 <= 0 || g.T2 > g.Valid {
		g.T2 = time.Duration(float64(g.Valid) * t2)
	}
	if g.T1 <= 0 || g.T1 > g.T2 {
		g.T1 = min(time.Duration(float64(g.Valid)*t1), g.T2)
	}
}

// Change replaces one grant's address and routes by another's, if the interface has the first
// address; had reports that, since the caller of ADD may not have configured it. The empty
// grant stands for none, which every interface has. The new address is added before the old
// one is removed. What both grants have is not changed: a later plugin (sbr, vrf) may have
// moved the routes to a table of its own.
func (p *Place) Change(from, to *Grant) (had bool, err error) {
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
		// With the first address of a subnet the kernel removes the others: add it again.
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

// holds reports whether the interface has an address; it always has none.
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

// without is the part of g that is not in keep.
func (g *Grant) without(keep *Grant) *Grant {
	out := &Grant{Gateway: g.Gateway}
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

func (g *Grant) has(r spec.Route) bool {
	for _, own := range g.Routes {
		own = g.via(own)
		if own.Dst == r.Dst && own.GW == r.GW && own.Priority == r.Priority {
			return true
		}
	}
	return false
}

// via gives a route without a gateway the grant's, as the plugins do.
func (g *Grant) via(r spec.Route) spec.Route {
	if !r.GW.IsValid() {
		r.GW = g.Gateway
	}
	return r
}

func (g *Grant) add(conn *nl.Conn, link netlink.Link) error {
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

func (g *Grant) remove(conn *nl.Conn, link netlink.Link) error {
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

// addAddr adds an address, if there is one, without looking for duplicates, since the server
// has given it to no other client.
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
