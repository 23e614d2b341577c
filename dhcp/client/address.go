// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// Withdraw removes the address and the routes that a plugin made from a grant. had reports
// whether the interface had the address: the caller of ADD may not have configured it.
func (p *Place) Withdraw(g *Grant) (had bool, err error) {
	err = p.with(func(conn *nl.Conn, link netlink.Link) error {
		if had, err = holds(conn, link, g.Address); !had {
			return err
		}
		return g.remove(conn, link)
	})
	return had, err
}

// Put gives the interface a grant's address and routes; existing ones are kept.
func (p *Place) Put(g *Grant) error {
	return p.with(func(conn *nl.Conn, link netlink.Link) error {
		if err := g.add(conn, link); err != nil {
			return err
		}
		return conn.Announce(link, []netip.Addr{g.Address.Addr()})
	})
}

// Change replaces one grant by another, if the interface has the first. It adds the new
// address before it removes the old one. What both have is not changed: a later plugin
// (sbr, vrf) may have moved the routes to a table of its own.
func (p *Place) Change(from, to *Grant) error {
	gone, come := from.without(to), to.without(from)
	if from.Address != to.Address {
		gone, come = from, to // the kernel removes the routes with the address
	}
	if !gone.Address.IsValid() && len(gone.Routes) == 0 && len(come.Routes) == 0 {
		return nil
	}
	return p.with(func(conn *nl.Conn, link netlink.Link) error {
		if had, err := holds(conn, link, from.Address); !had {
			return err
		}
		if err := addAddr(conn, link, to.Address); err != nil {
			return err
		}
		err := errors.Join(gone.remove(conn, link), come.add(conn, link))
		if from.Address != to.Address {
			err = errors.Join(err, conn.Announce(link, []netip.Addr{to.Address.Addr()}))
		}
		return err
	})
}

// Holds reports whether the interface has an address.
func (p *Place) Holds(a netip.Prefix) (had bool, err error) {
	err = p.with(func(conn *nl.Conn, link netlink.Link) error {
		had, err = holds(conn, link, a)
		return err
	})
	return had, err
}

func holds(conn *nl.Conn, link netlink.Link, a netip.Prefix) (bool, error) {
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
	if g.Address.IsValid() {
		if err := addAddr(conn, link, g.Address); err != nil {
			return err
		}
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

// addAddr adds an address without looking for duplicates, since the server has given it to
// no other client.
func addAddr(conn *nl.Conn, link netlink.Link, a netip.Prefix) error {
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
