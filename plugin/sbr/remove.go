// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// del removes the rules and moves the link's routes back.
func del(ctx context.Context, r *plugin.Request) error {
	return kernel.DetachInside(r, func(c *nl.Conn, rec *record.Record) error { return release(ctx, r, c, rec) })
}

func release(ctx context.Context, r *plugin.Request, c *nl.Conn, rec *record.Record) error {
	unlock, err := c.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	link, err := c.Link(r.IfName)
	switch {
	case nl.IsNotFound(err):
		link = nil
	case err != nil:
		return fmt.Errorf("Failed to get link %s: %w", r.IfName, err)
	}
	rules, err := owned(r, c, rec, link)
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range rules {
		if u.Own && link != nil {
			errs = append(errs, giveBack(r, c, link, u.Table))
		}
		errs = append(errs, rule{u.Src, u.Table}.remove(c)) // last, because a second DEL finds the table by the rule
	}
	return errors.Join(errs...)
}

// owned returns the rules of the record. If there is no record, owned finds the rules by the
// addresses of the link and of the previous result. An attachment of the reference plugin, for
// example, has no record.
func owned(r *plugin.Request, c *nl.Conn, rec *record.Record, link netlink.Link) (out []record.Rule, err error) {
	if rec != nil {
		return rec.Rules, nil
	}
	conf := plugin.ConfOf[Conf](r)
	if _, err := r.Conf(); err != nil {
		kernel.Warn(r, err)
	}
	rules, err := c.Rules()
	if err != nil {
		return nil, err
	}
	ips, err := addresses(r, c, link)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		for _, u := range rulesFrom(rules, ip) {
			if conf.Table == nil && !kernels(u.table) || conf.Table != nil && *conf.Table == u.table {
				out = append(out, record.Rule{Src: u.src, Table: u.table, Own: conf.Table == nil})
			}
		}
	}
	return out, nil
}

// giveBack moves the routes of a table back to the main table. It skips a route if the main table
// has another one to the same destination. It drops default routes: until the interface is
// deleted, which happens next, they could attract other traffic of the container.
func giveBack(r *plugin.Request, c *nl.Conn, link netlink.Link, table int) error {
	list, err := c.LinkRoutes(link.Attrs().Index, table)
	if err != nil {
		return err
	}
	order.Stable(list, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) }) // a route through a next hop comes after the route to that next hop
	main, err := c.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var errs []error
	for _, back := range list {
		if bits, _ := back.Dst.Mask.Size(); bits > 0 && !has(main, back) {
			if err := putBack(c, steady(back)); err != nil {
				kernel.Warn(r, err)
			}
		}
		errs = append(errs, drop(c, back))
	}
	return errors.Join(errs...)
}

// has reports whether a route to the destination exists. Each link has its own IPv6 link-local
// route, so only the same link counts for such a route. (The reference removes these routes.)
func has(routes []netlink.Route, want netlink.Route) bool {
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.Dst.String() == want.Dst.String() && (!linkLocal(want) || r.LinkIndex == want.LinkIndex)
	})
}

// addresses returns the addresses of the link and of the previous result.
func addresses(r *plugin.Request, c *nl.Conn, link netlink.Link) (out []netip.Addr, err error) {
	if r.Prev() != nil {
		ips, err := sources(r)
		if err != nil {
			kernel.Warn(r, err)
		}
		for _, ip := range ips {
			out = append(out, ip.Address.Addr())
		}
	}
	if link == nil {
		return out, nil
	}
	have, err := c.Addrs(link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	for _, a := range have {
		if !slices.Contains(out, a.Prefix.Addr()) {
			out = append(out, a.Prefix.Addr())
		}
	}
	return out, nil
}
