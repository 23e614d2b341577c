// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/spec"
)

// Behind says how the routes of an interface differ from those of its lease, because the kernel refused some. Then
// the routes of the lease before stay, so that the container is not cut off.
type Behind struct {
	Missing []spec.Route `json:"missing,omitempty"` // the kernel refused these
	Old     []spec.Route `json:"old,omitempty"`     // these have not been removed
}

// On returns the lease with the routes that the interface has.
func (b Behind) On(g *Lease) *Lease {
	out := *g
	out.Routes = slices.DeleteFunc(slices.Clone(g.Routes), func(r spec.Route) bool { return contains(b.Missing, r) })
	out.Routes = append(out.Routes, b.Old...)
	return &out
}

// Any reports whether there is a difference.
func (b Behind) Any() bool { return len(b.Missing) > 0 || len(b.Old) > 0 }

// Equal reports whether two differences are the same.
func (b Behind) Equal(o Behind) bool {
	return slices.EqualFunc(b.Missing, o.Missing, sameRoute) && slices.EqualFunc(b.Old, o.Old, sameRoute)
}

// Change replaces the address and routes of one grant by those of another. It does so only if the interface has
// the first address, because the caller of ADD may not have set it yet; had reports whether it has. An empty grant
// has no address, and counts as being on every interface. Change adds the new address before it removes the old
// one. It leaves alone what both grants have, because a later plugin (sbr, vrf) may have moved the routes to
// another table.
//
// If the kernel refuses a route, Change adds the others. If the address stays, the old routes stay too. The caller
// gives what Change returns as behind to the next Change, by Behind.On.
func (p *Place) Change(from, to *Lease) (had bool, behind Behind, err error) {
	gone, come := from.without(to), to.without(from)
	moved := from.Address != to.Address
	if moved {
		gone, come = from, to // the kernel removes the routes with the address
	} else if len(gone.Routes) == 0 && len(come.Routes) == 0 {
		return true, behind, nil
	}
	err = p.with(func(conn *nl.Conn, link netlink.Link) error {
		if had, err = holds(conn, link, from.Address); !had {
			return err
		}
		if moved {
			behind, err = move(conn, link, gone, come)
			return err
		}
		if behind.Missing, err = come.addRoutes(conn, link); err != nil {
			behind.Old = gone.Routes
			return err
		}
		return gone.remove(conn, link)
	})
	return had, behind, err
}

// move replaces one address by another.
func move(conn *nl.Conn, link netlink.Link, gone, come *Lease) (behind Behind, err error) {
	if err := addAddr(conn, link, come.Address); err != nil {
		return behind, err
	}
	err = gone.remove(conn, link)
	// When the first address of a subnet is removed, the kernel also removes the other
	// addresses of that subnet. So add the new address again.
	err = errors.Join(err, addAddr(conn, link, come.Address))
	missing, rerr := come.addRoutes(conn, link)
	if err = errors.Join(err, rerr); come.Address.IsValid() {
		err = errors.Join(err, conn.Announce(link, []netip.Addr{come.Address.Addr()}))
	}
	return Behind{Missing: missing}, err
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
	return slices.ContainsFunc(g.Routes, func(own spec.Route) bool { return sameRoute(g.via(own), r) })
}

func contains(list []spec.Route, r spec.Route) bool {
	return slices.ContainsFunc(list, func(o spec.Route) bool { return sameRoute(o, r) })
}

func sameRoute(a, b spec.Route) bool {
	return a.Dst == b.Dst && a.GW == b.GW && a.Priority == b.Priority
}

// via returns a route with its next hop. If the route has none, via sets the gateway of the lease, as the plugins
// do.
func (g *Lease) via(r spec.Route) spec.Route {
	switch {
	case r.OnLink():
		r.GW = netip.Addr{}
	case !r.GW.IsValid():
		r.GW = g.Gateway
	}
	return r
}

// addRoutes adds the routes, beside those of other interfaces. It returns those that the kernel refuses. Routes on
// the link come first, because the routers of others may be behind them, and no RFC gives servers an order.
func (g *Lease) addRoutes(conn *nl.Conn, link netlink.Link) (refused []spec.Route, err error) {
	list := slices.Clone(g.Routes)
	order.Stable(list, func(a, b spec.Route) int { return g.via(a).GW.BitLen() - g.via(b).GW.BitLen() })
	for _, r := range list {
		hop := g.via(r)
		if e := conn.RouteAddEcmp(route(link, hop)); e != nil && !errors.Is(e, unix.EEXIST) {
			refused = append(refused, r)
			err = errors.Join(err, fmt.Errorf("set route %s via %s dev %s: %w", r.Dst, hop.GW, link.Attrs().Name, e))
		}
	}
	return refused, err
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

func route(link netlink.Link, r spec.Route) *netlink.Route {
	out := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: nl.IPNet(r.Dst.Masked()), Priority: r.Priority, Gw: r.GW.AsSlice()}
	if r.Scope != nil {
		out.Scope = netlink.Scope(*r.Scope)
	}
	return out
}
