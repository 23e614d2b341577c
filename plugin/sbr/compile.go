// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/spec"
)

// source is one address of the interface and the routing table for packets from this address.
type source struct {
	spec.IPConfig
	table int
}

// rulesOnly returns the state without routes, for a table that another program fills.
func rulesOnly(list []source) (s netstate.State) {
	for _, src := range list {
		s = append(s, rule{src.Address.Addr(), src.table})
	}
	return s
}

// compile computes the desired state. Each address gets a rule, a default route, and those routes
// of the link that belong to the address. Then these routes leave the main table, except the
// source hints. The rule comes first: after a kill, DEL finds the table by the rule.
func compile(conf *Conf, link string, list []source, have []netlink.Route) (s netstate.State) {
	have = movable(have)
	for _, src := range list {
		s = append(s, rule{src.Address.Addr(), src.table})
		if gw := conf.gateway(src.IPConfig); gw.IsValid() {
			s = append(s, place(netlink.Route{Dst: zero(gw), Gw: gw.AsSlice(), Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT}, link, src))
		}
		for _, r := range have {
			if serves(r, src, list) {
				s = append(s, place(r, link, src))
			}
		}
	}
	hints := conf.hints(link, list)
	for _, r := range have {
		if !slices.ContainsFunc(hints, func(h route) bool { return h.is(r) }) {
			s = append(s, route{link: link, absent: true, msg: r})
		}
	}
	for _, h := range hints {
		s = append(s, h)
	}
	return s
}

// hints returns the routes to the addresses' subnets in the main table.
func (c *Conf) hints(link string, list []source) (out []route) {
	if !c.AddSourceHints {
		return nil
	}
	for _, src := range list {
		if src.Address.IsSingleIP() {
			continue
		}
		out = append(out, route{link: link, beside: true, msg: netlink.Route{
			Dst: nl.IPNet(src.Address.Masked()), Src: src.Address.Addr().AsSlice(), Scope: netlink.SCOPE_LINK,
			Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST,
		}})
	}
	return out
}

// place returns a route moved to the table of src.
func place(r netlink.Route, link string, src source) route {
	r.Table = src.table
	return route{link: link, msg: r}
}

func zero(a netip.Addr) *net.IPNet { return nl.IPNet(netip.PrefixFrom(a, 0).Masked()) }

// movable returns the routes that may be moved. movable leaves out IPv6 link-local routes,
// because the interface needs them for packets from any address.
func movable(have []netlink.Route) (out []netlink.Route) {
	for _, r := range have {
		if r.Dst != nil && !linkLocal(r) {
			out = append(out, steady(r))
		}
	}
	return out
}

func linkLocal(r netlink.Route) bool {
	return prefix.IsLinkLocal(nl.PrefixOf(r.Dst).Addr())
}

// steady returns a route without the flags that the kernel sets for its current state.
func steady(r netlink.Route) netlink.Route {
	r.Flags &= int(netlink.FLAG_ONLINK)
	for _, hop := range r.MultiPath {
		hop.Flags &= int(netlink.FLAG_ONLINK)
	}
	return r
}

// serves reports whether a route goes into the table of src. It does if its next hop or its own source
// is in the subnet of src, or in no address's subnet.
func serves(r netlink.Route, src source, all []source) bool {
	if (r.Dst.IP.To4() != nil) != src.Address.Addr().Is4() {
		return false
	}
	return within(src, r) || !slices.ContainsFunc(all, func(other source) bool { return within(other, r) })
}

func within(src source, r netlink.Route) bool {
	near := func(ip net.IP) bool { return src.Address.Contains(nl.AddrOf(ip)) }
	return near(r.Src) || near(r.Gw) || slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return near(hop.Gw) })
}

// promised returns the routes that a link must have according to its previous result. A dry run
// uses them in place of the kernel's routes, and CHECK expects them.
func promised(prev *spec.Result, list []source) (out []netlink.Route) {
	for _, src := range list {
		if !src.Address.IsSingleIP() {
			out = append(out, netlink.Route{Dst: nl.IPNet(src.Address.Masked()), Src: src.Address.Addr().AsSlice()})
		}
	}
	var ips []spec.IPConfig
	for _, src := range list {
		ips = append(ips, src.IPConfig)
	}
	for _, r := range prev.Routes {
		if r.Table != nil && *r.Table != 0 && *r.Table != unix.RT_TABLE_MAIN {
			continue // a route outside the main table is not moved
		}
		m := netlink.Route{Dst: nl.IPNet(r.Dst.Masked())}
		if gw := endpoint.NextHop(r, ips); gw.IsValid() {
			m.Gw = gw.AsSlice()
		}
		out = append(out, m)
	}
	for i := range out {
		out[i].Table, out[i].Type = unix.RT_TABLE_MAIN, unix.RTN_UNICAST
	}
	return out
}

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

// Ensure adds the rule unless it exists. Ensure must check this itself, because NLM_F_EXCL
// compares the priority too: the kernel would add an equal rule with another priority.
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

// Diff reports whether the rule is missing.
func (u rule) Diff(_ context.Context, env *netstate.Env) (string, error) {
	rules, err := env.Sandbox.Rules()
	if err != nil || slices.Contains(rulesFrom(rules, u.src), u) {
		return "", err
	}
	return fmt.Sprintf("rule from %s to table %d not found", u.src, u.table), nil
}

// rulesFrom returns the rules for exactly this source address.
func rulesFrom(rules []netlink.Rule, src netip.Addr) (out []rule) {
	for _, r := range rules {
		if r.Src != nil && r.Table > 0 && r.Src.String() == single(src).String() {
			out = append(out, rule{src, r.Table})
		}
	}
	return out
}

func single(a netip.Addr) *net.IPNet { return nl.IPNet(netip.PrefixFrom(a, a.BitLen())) }

// route is a route of the link as the kernel returned it. Ensure adds it to its table or, if absent
// is set, removes it. If beside is set, other links may have routes to the same destination, and
// this route comes after them.
type route struct {
	link           string
	absent, beside bool
	msg            netlink.Route
}

// is reports whether r is the same route, whatever program made it.
func (o route) is(r netlink.Route) bool {
	return r.Dst.String() == o.msg.Dst.String() && r.Src.Equal(o.msg.Src) && len(r.Gw) == 0
}

func (o route) String() string {
	var b strings.Builder
	b.WriteString("sandbox: ip route ")
	switch {
	case o.absent:
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
	case o.absent:
		return o.remove(env.Sandbox)
	case o.beside:
		return o.join(env.Sandbox, link)
	}
	if err := env.Sandbox.RouteReplace(&o.msg); err != nil {
		return nil, fmt.Errorf("Failed to readd route: %s: %w", o, err)
	}
	return func(context.Context) error { return drop(env.Sandbox, o.msg) }, nil
}

func (o route) remove(c *nl.Conn) (netstate.Undo, error) {
	if err := drop(c, o.msg); err != nil {
		return nil, err
	}
	return func(context.Context) error { return putBack(c, o.msg) }, nil
}

// putBack adds a route to the main table, beside other links' routes to the same destination. To replace
// would remove one of those.
func putBack(c *nl.Conn, r netlink.Route) error {
	r.Table = unix.RT_TABLE_MAIN
	if err := c.RouteAddEcmp(&r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("Failed to put back route: %s: %w", r.Dst, err)
	}
	return nil
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

// drop deletes a route. drop accepts that the route is missing.
func drop(c *nl.Conn, r netlink.Route) error {
	if err := c.RouteDel(&r); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("Failed to delete route: %s from table %d: %w", r.Dst, r.Table, err)
	}
	return nil
}

// Diff reports whether the table has no route to the destination through the next hop.
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
