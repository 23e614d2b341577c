// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/announce"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// Setup is what a lease puts on an interface: the address and the routes that a plugin made
// from the result.
type Setup struct {
	Address netip.Prefix
	Gateway netip.Addr // of routes that name none
	Routes  []spec.Route
}

// Withdraw removes a setup from the interface. had reports whether the interface had the
// address: the caller of ADD may not have configured it.
func (p *Place) Withdraw(s *Setup) (had bool, err error) {
	conn, link, err := p.Conn()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if had, err = holds(conn, link, s.Address); !had {
		return false, err
	}
	return true, s.remove(conn, link)
}

// Put gives the interface a setup; existing parts are kept.
func (p *Place) Put(s *Setup) error {
	conn, link, err := p.Conn()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := s.add(conn, link); err != nil {
		return err
	}
	return announce.Send(conn, link, []netip.Addr{s.Address.Addr()})
}

// Change replaces one setup by another, if the interface has the first. It adds the new
// address before it removes the old one. What both have is not changed: a later plugin
// (sbr, vrf) may have moved the routes to a table of its own.
func (p *Place) Change(from, to *Setup) error {
	gone, come := from.without(to), to.without(from)
	if from.Address != to.Address {
		gone, come = from, to // the kernel removes the routes with the address
	}
	if !gone.Address.IsValid() && len(gone.Routes) == 0 && len(come.Routes) == 0 {
		return nil
	}
	conn, link, err := p.Conn()
	if err != nil {
		return err
	}
	defer conn.Close()
	if had, err := holds(conn, link, from.Address); !had {
		return err
	}
	if err := addAddr(conn, link, to.Address); err != nil {
		return err
	}
	err = errors.Join(gone.remove(conn, link), come.add(conn, link))
	if from.Address != to.Address {
		err = errors.Join(err, announce.Send(conn, link, []netip.Addr{to.Address.Addr()}))
	}
	return err
}

// Holds reports whether the interface has an address.
func (p *Place) Holds(a netip.Prefix) (bool, error) {
	conn, link, err := p.Conn()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	return holds(conn, link, a)
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

// without is the part of s that is not in keep.
func (s *Setup) without(keep *Setup) *Setup {
	out := &Setup{Gateway: s.Gateway}
	if s.Address != keep.Address {
		out.Address = s.Address
	}
	for _, r := range s.Routes {
		if !keep.has(s.via(r)) {
			out.Routes = append(out.Routes, r)
		}
	}
	return out
}

func (s *Setup) has(r spec.Route) bool {
	for _, own := range s.Routes {
		own = s.via(own)
		if own.Dst == r.Dst && own.GW == r.GW && own.Priority == r.Priority {
			return true
		}
	}
	return false
}

// via gives a route without a gateway the setup's, as the plugins do.
func (s *Setup) via(r spec.Route) spec.Route {
	if !r.GW.IsValid() {
		r.GW = s.Gateway
	}
	return r
}

func (s *Setup) add(conn *nl.Conn, link netlink.Link) error {
	if s.Address.IsValid() {
		if err := addAddr(conn, link, s.Address); err != nil {
			return err
		}
	}
	for _, r := range s.Routes {
		r = s.via(r)
		if err := conn.RouteReplace(route(link, r)); err != nil {
			return fmt.Errorf("set route %s via %s dev %s: %w", r.Dst, r.GW, link.Attrs().Name, err)
		}
	}
	return nil
}

func (s *Setup) remove(conn *nl.Conn, link netlink.Link) error {
	var errs []error
	for _, r := range s.Routes {
		if err := conn.RouteDel(route(link, s.via(r))); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	if s.Address.IsValid() {
		if err := conn.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(s.Address)}); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove address %s: %w", s.Address, err))
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
