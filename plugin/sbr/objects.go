// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// rule sends packets from an address to a table.
type rule struct {
	src   netip.Addr
	table int
}

func (u rule) String() string {
	return fmt.Sprintf("sandbox: ip rule add from %s table %d", u.src, u.table)
}

func (u rule) message() *netlink.Rule {
	m := netlink.NewRule()
	m.Src, m.Table = single(u.src), u.table
	return m
}

// Ensure adds the rule unless it exists. The kernel would add an equal one with another
// priority (NLM_F_EXCL compares that too).
func (u rule) Ensure(ctx context.Context, env *netstate.Env) (netstate.Undo, error) {
	if missing, err := u.Diff(ctx, env); err != nil || missing == "" {
		return nil, err
	}
	if err := env.Sandbox.RuleAdd(u.message()); err != nil {
		return nil, fmt.Errorf("Failed to add rule from %s to table %d: %w", u.src, u.table, err)
	}
	return func(context.Context) error { return u.remove(env.Sandbox) }, nil
}

func (u rule) remove(c *nl.Conn) error {
	if err := c.RuleDel(u.message()); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("Failed to delete rule from %s to table %d: %w", u.src, u.table, err)
	}
	return nil
}

// Diff expects the rule.
func (u rule) Diff(_ context.Context, env *netstate.Env) (string, error) {
	rules, err := env.Sandbox.Rules()
	if err != nil {
		return "", err
	}
	for _, have := range rulesFrom(rules, u.src) {
		if have == u {
			return "", nil
		}
	}
	return fmt.Sprintf("rule from %s to table %d not found", u.src, u.table), nil
}

// rulesFrom finds the rules for exactly this source.
func rulesFrom(rules []netlink.Rule, src netip.Addr) (out []rule) {
	for _, r := range rules {
		if r.Src != nil && r.Table > 0 && r.Src.String() == single(src).String() {
			out = append(out, rule{src, r.Table})
		}
	}
	return out
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// route is a route of the link as the kernel returned it, with the table to add it to or,
// if gone, to remove it from. One with beside set comes after the routes of other links to
// the same destination.
type route struct {
	link         string
	gone, beside bool
	msg          netlink.Route
}

// is reports whether r is the route, whichever program made it.
func (o route) is(r netlink.Route) bool {
	return r.Dst.String() == o.msg.Dst.String() && r.Src.Equal(o.msg.Src) && len(r.Gw) == 0
}

func (o route) String() string {
	var b strings.Builder
	b.WriteString("sandbox: ip route ")
	switch {
	case o.gone:
		b.WriteString("del")
	case o.beside:
		b.WriteString("append")
	default:
		b.WriteString("replace")
	}
	fmt.Fprintf(&b, " %s", o.msg.Dst)
	if o.msg.Gw != nil {
		fmt.Fprintf(&b, " via %s", o.msg.Gw)
	}
	for _, hop := range o.msg.MultiPath {
		fmt.Fprintf(&b, " nexthop via %s", hop.Gw)
	}
	fmt.Fprintf(&b, " dev %s", o.link)
	if o.msg.Src != nil {
		fmt.Fprintf(&b, " src %s", o.msg.Src)
	}
	fmt.Fprintf(&b, " table %d", o.msg.Table)
	return b.String()
}

// Ensure adds the route to the table or removes it.
func (o route) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Link(netstate.Sandbox, o.link)
	if err != nil {
		return nil, fmt.Errorf("Cannot find network interface %s: %w", o.link, err)
	}
	if len(o.msg.MultiPath) == 0 {
		o.msg.LinkIndex = link.Attrs().Index
	}
	switch {
	case o.gone:
		return o.take(env.Sandbox)
	case o.beside:
		return o.join(env.Sandbox, link)
	}
	if err := env.Sandbox.RouteReplace(&o.msg); err != nil {
		return nil, fmt.Errorf("Failed to readd route: %s: %w", o, err)
	}
	return func(context.Context) error { return drop(env.Sandbox, o.msg) }, nil
}

func (o route) take(c *nl.Conn) (netstate.Undo, error) {
	if err := drop(c, o.msg); err != nil {
		return nil, err
	}
	return func(context.Context) error { return c.RouteReplace(&o.msg) }, nil
}

// join adds the route unless it exists.
func (o route) join(c *nl.Conn, link netlink.Link) (netstate.Undo, error) {
	have, err := c.LinkRoutes(link.Attrs().Index, o.msg.Table)
	if err != nil || slices.ContainsFunc(have, o.is) {
		return nil, err
	}
	if err := c.RouteAppend(&o.msg); err != nil {
		return nil, fmt.Errorf("Failed to add route: %s: %w", o, err)
	}
	return func(context.Context) error { return drop(c, o.msg) }, nil
}

// drop deletes a route; a missing one is no error.
func drop(c *nl.Conn, r netlink.Route) error {
	if err := c.RouteDel(&r); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("Failed to delete route: %s from table %d: %w", r.Dst, r.Table, err)
	}
	return nil
}

// Diff expects a route to the destination in the table, through the next hop.
func (o route) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Sandbox, o.link)
	if err != nil {
		return "", err
	}
	have, err := env.Sandbox.LinkRoutes(link.Attrs().Index, o.msg.Table)
	if err != nil {
		return "", err
	}
	for _, h := range have {
		if o.beside && !o.is(h) {
			continue
		}
		if h.Dst.String() == o.msg.Dst.String() && (o.msg.Gw == nil || h.Gw.Equal(o.msg.Gw)) {
			return "", nil
		}
	}
	return fmt.Sprintf("route %s via %v dev %s not found in table %d", o.msg.Dst, o.msg.Gw, o.link, o.msg.Table), nil
}
