// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

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

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Route is a route through a link. A field with the zero value means: no gateway, the kernel's
// own MTU, MSS and metric, the main table, global scope.
type Route struct {
	Where    Where
	Link     string
	Dst      netip.Prefix
	Gateway  netip.Addr
	Src      netip.Addr
	MTU      int // bytes
	AdvMSS   int // bytes
	Priority int
	Table    int
	Scope    int // RT_SCOPE_*: 0 global, 253 link, 254 host

	OnLink  bool // the gateway is on the link, even if no route says so
	Replace bool // replace a route to the same destination

	Repairable bool // CHECK says that "patchbay repair" can add the route
}

// String returns the ip command that adds the route.
func (r Route) String() string {
	var b strings.Builder
	verb := "add"
	if r.Replace {
		verb = "replace"
	}
	fmt.Fprintf(&b, "%s: ip route %s %s", r.Where, verb, r.Dst)
	if r.Gateway.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Gateway)
	}
	fmt.Fprintf(&b, " dev %s", r.Link)
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	for _, n := range []struct {
		word  string
		value int
	}{{"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"metric", r.Priority}, {"table", r.Table}, {"scope", r.Scope}} {
		if n.value != 0 {
			fmt.Fprintf(&b, " %s %d", n.word, n.value)
		}
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	return b.String()
}

func (r Route) message(index int) nl.Route {
	out := nl.Route{
		Link: index, Dst: r.Dst.Masked(), Gateway: r.Gateway, Src: r.Src,
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: uint8(r.Scope),
	}
	if r.OnLink {
		out.Flags = unix.RTNH_F_ONLINK
	}
	return out
}

// Ensure adds the route. Like the reference, it does not set NLM_F_EXCL. So a second route to
// the same destination is added next to the first (IPv6: ECMP).
func (r Route) Ensure(_ context.Context, env *Env) (Undo, error) {
	link, err := env.Link(r.Where, r.Link)
	if err != nil {
		return nil, err
	}
	conn, msg := env.Conn(r.Where), r.message(link.Attrs().Index)
	add := conn.AddRoute
	if r.Replace {
		add = conn.ReplaceRoute
	}
	if err := add(msg); err != nil {
		return nil, fmt.Errorf("failed to add route '%v via %v dev %v metric %d (Scope: %v, Table: %d)': %w",
			r.Dst, gatewayText(r.Gateway), r.Link, r.Priority, netlink.Scope(r.Scope), r.Table, err)
	}
	return func(context.Context) error {
		if err := conn.DeleteRoute(msg); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("remove %s: %w", r, err)
		}
		return nil
	}, nil
}

// gatewayText returns the gateway's text. For a missing gateway it prints what the reference
// prints.
func gatewayText(gw netip.Addr) string {
	if !gw.IsValid() {
		return "<nil>"
	}
	return gw.String()
}

// Diff reports whether the route to the destination through the gateway is missing. Diff looks in
// Table. If Table is 0, Diff looks in every table, because a later plugin (sbr, vrf) may have
// moved the route.
func (r Route) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(r.Where, r.Link)
	if err != nil {
		return diffMissing(err)
	}
	find := r.find
	if r.Where == Host {
		find = r.lookup // the host may have many routes, so do not list them
	}
	found, err := find(env.Conn(r.Where), link)
	if err != nil || found {
		return "", err
	}
	text := fmt.Sprintf("Expected Route %v not found in routing table", r.text())
	if r.Repairable {
		if there, err := r.Served(env); err == nil && !there {
			text += " (run patchbay repair)"
		}
	}
	return text, nil
}

// Served reports whether the host has a route to exactly this destination, through any link.
func (r Route) Served(env *Env) (bool, error) {
	return r.matching(env.Host, func(*netlink.Route) bool { return true })
}

func (r Route) text() string {
	return fmt.Sprintf("{%v %v}", r.Dst, gatewayText(r.Gateway))
}

// find reports whether the container has the route in r.Table. If r.Table is 0, it looks in
// every table.
func (r Route) find(conn *nl.Conn, link netlink.Link) (bool, error) {
	family := netlink.FAMILY_V6
	if r.Dst.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	filter := &netlink.Route{Dst: nl.IPNet(r.Dst.Masked()), Table: r.Table}
	routes, err := conn.RouteListFiltered(family, filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, fmt.Errorf("route table lookup error: %w", err)
	}
	for _, got := range routes {
		if r.served(got, link) && !slices.ContainsFunc(routes, func(o netlink.Route) bool { return refusesBefore(o, got) }) {
			return true, nil
		}
	}
	return false, nil
}

// served reports whether CHECK may accept a route to the destination in place of the expected
// route. A default route through another interface may, because an operator may have chosen it for
// the container.
func (r Route) served(got netlink.Route, link netlink.Link) bool {
	if got.Type != unix.RTN_UNICAST {
		return false
	}
	if !r.Gateway.IsValid() || hasGateway(got, r.Gateway) {
		return true
	}
	return r.Dst.Bits() == 0 && len(got.MultiPath) == 0 && got.LinkIndex != link.Attrs().Index
}

func hasGateway(got netlink.Route, want netip.Addr) bool {
	hops := []net.IP{got.Gw}
	for _, h := range got.MultiPath {
		hops = append(hops, h.Gw)
	}
	return slices.ContainsFunc(hops, func(ip net.IP) bool { return ip.Equal(want.AsSlice()) })
}

// refusesBefore reports whether o, a route that refuses packets, takes precedence over got.
func refusesBefore(o, got netlink.Route) bool {
	leadsNowhere := o.Type == unix.RTN_UNREACHABLE || o.Type == unix.RTN_BLACKHOLE || o.Type == unix.RTN_PROHIBIT
	return leadsNowhere && o.Table == got.Table && o.Priority < got.Priority
}

// lookup asks the kernel which route it uses for the destination.
func (r Route) lookup(conn *nl.Conn, link netlink.Link) (bool, error) {
	return r.matching(conn, func(got *netlink.Route) bool { return got.LinkIndex == link.Attrs().Index })
}

func (r Route) matching(conn *nl.Conn, is func(*netlink.Route) bool) (bool, error) {
	routes, err := conn.RouteGetWithOptions(r.Dst.Addr().AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), nl.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("route table lookup error: %w", err)
	}
	for _, got := range routes {
		if is(&got) && got.Dst != nil && got.Dst.String() == nl.IPNet(r.Dst.Masked()).String() {
			return true, nil
		}
	}
	return false, nil
}

// Reached checks during CHECK whether the host reaches a container's address through the link
// that has its gateway. Three things can go wrong. The route that came with the gateway's address
// is missing; no ADD restores it. Another network has the same subnet. Another route leads
// elsewhere.
type Reached struct {
	Link    string
	Addr    netip.Addr
	Gateway netip.Prefix // the gateway's address; its route leads to the container
}

// String names the expected route.
func (w Reached) String() string { return fmt.Sprintf("host: reach %s by %s", w.Addr, w.Link) }

// Ensure does nothing, because these routes come with the addresses of the host.
func (Reached) Ensure(context.Context, *Env) (Undo, error) { return nil, nil }

// Diff reports that no route exists, or that the route uses another link. It leaves a link that
// is down and a missing address to other objects. It skips a link in a VRF, because a VRF has its
// own routes.
func (w Reached) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, w.Link)
	if err != nil || link.Attrs().MasterIndex != 0 || link.Attrs().RawFlags&unix.IFF_UP == 0 {
		return "", nil //nolint:nilerr // an earlier object reports it
	}
	if d := withoutARP(link); d != "" {
		return d, nil
	}
	if has, err := hasAddr(env.Host, link, w.Gateway); err != nil || !has {
		return "", err
	}
	routes, err := env.Host.RouteGetWithOptions(w.Addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), nl.IsNotFound(err):
		return w.lost(), nil
	case err != nil && !nl.IsNoRoute(err):
		return "", fmt.Errorf("find route to %s: %w", w.Addr, err)
	case err != nil || len(routes) == 0 || routes[0].LinkIndex == link.Attrs().Index || routes[0].LinkIndex == 0:
		return "", nil //nolint:nilerr // several links, or a rule that refuses it: nothing to name
	case nl.PrefixOf(routes[0].Dst).Bits() <= 0: // the default route; the kernel returns it with or without a destination
		return w.lost(), nil
	}
	other, err := env.Host.LinkAt(routes[0].LinkIndex)
	if nl.IsNotFound(err) { // the link has just been deleted
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the host reaches %s by %s instead of %s", w.Addr, other.Attrs().Name, w.Link), nil
}

// withoutARP reports that an Ethernet link cannot find neighbours because ARP is off.
func withoutARP(link netlink.Link) string {
	at := link.Attrs()
	if at.RawFlags&unix.IFF_NOARP == 0 || !slices.Contains([]string{"bridge", "veth", "macvlan"}, link.Type()) {
		return ""
	}
	return fmt.Sprintf("ARP is off on %s, so neither end finds the other (ip link set %s arp on)", at.Name, at.Name)
}

func (w Reached) lost() string {
	return fmt.Sprintf("the host has no route to %s by %s, which no ADD restores (ip route add %s dev %s src %s)",
		w.Addr, w.Link, w.Gateway.Masked(), w.Link, w.Gateway.Addr())
}
