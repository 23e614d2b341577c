// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// source is one address of the interface and the table for its packets.
type source struct {
	spec.IPConfig
	table int
}

// rulesOnly is the state when another program fills the table.
func rulesOnly(list []source) (s netstate.State) {
	for _, src := range list {
		s = append(s, rule{src.Address.Addr(), src.table})
	}
	return s
}

// compile computes the desired state: for each address a rule, a default route and the
// link's routes that are the address's; then the removal of these from the main table,
// except for the source hints. The rule comes first, so that after a kill it leads DEL to
// the table.
func compile(conf *Conf, link string, list []source, have []netlink.Route) (s netstate.State) {
	have = movable(have)
	for _, src := range list {
		s = append(s, rule{src.Address.Addr(), src.table})
		if gw := conf.gateway(src.IPConfig); gw.IsValid() {
			s = append(s, place(defaultRoute(gw), link, src))
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
			s = append(s, route{link: link, gone: true, msg: r})
		}
	}
	for _, h := range hints {
		s = append(s, h)
	}
	return s
}

// hints are the routes to the addresses' subnets in the main table.
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

// place is a route in the table of src.
func place(r netlink.Route, link string, src source) route {
	r.Table = src.table
	return route{link: link, msg: r}
}

func defaultRoute(gw netip.Addr) netlink.Route {
	return netlink.Route{Dst: zero(gw), Gw: gw.AsSlice(), Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT}
}

func zero(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}

// movable leaves out the link-local routes of IPv6, which the interface itself needs for
// any source.
func movable(have []netlink.Route) (out []netlink.Route) {
	for _, r := range have {
		if r.Dst != nil && !linkLocal(r) {
			out = append(out, steady(r))
		}
	}
	return out
}

func linkLocal(r netlink.Route) bool {
	return r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast() && r.Dst.IP.To4() == nil
}

// steady is a route without the flags of its momentary state.
func steady(r netlink.Route) netlink.Route {
	r.Flags &= int(netlink.FLAG_ONLINK)
	for _, hop := range r.MultiPath {
		hop.Flags &= int(netlink.FLAG_ONLINK)
	}
	return r
}

// serves reports whether a route goes into the table of src: its next hop or its
// own source is in the subnet of src, or in no address's subnet at all.
func serves(r netlink.Route, src source, all []source) bool {
	if (r.Dst.IP.To4() != nil) != src.Address.Addr().Is4() {
		return false
	}
	if within(src, r) {
		return true
	}
	for _, other := range all {
		if within(other, r) {
			return false
		}
	}
	return true
}

func within(src source, r netlink.Route) bool {
	for _, ip := range append([]net.IP{r.Src, r.Gw}, hops(r)...) {
		if a := nl.AddrOf(ip); a.IsValid() && src.Address.Contains(a) {
			return true
		}
	}
	return false
}

func hops(r netlink.Route) (out []net.IP) {
	for _, hop := range r.MultiPath {
		out = append(out, hop.Gw)
	}
	return out
}

// promised are the routes that a link has by its previous result: a dry run uses them in
// place of the kernel's, and CHECK looks for them.
func promised(prev *spec.Result, list []source) (out []netlink.Route) {
	for _, src := range list {
		if !src.Address.IsSingleIP() {
			out = append(out, netlink.Route{Dst: nl.IPNet(src.Address.Masked()), Src: src.Address.Addr().AsSlice()})
		}
	}
	for _, r := range prev.Routes {
		if r.Table != nil && *r.Table != 0 && *r.Table != unix.RT_TABLE_MAIN {
			continue // not in the main table, so not moved
		}
		m := netlink.Route{Dst: nl.IPNet(r.Dst.Masked())}
		if gw := nextHop(r, list); gw.IsValid() {
			m.Gw = gw.AsSlice()
		}
		out = append(out, m)
	}
	for i := range out {
		out[i].Table, out[i].Type = unix.RT_TABLE_MAIN, unix.RTN_UNICAST
	}
	return out
}

// nextHop applies the rule for results: a route without a next hop uses the first of its
// family.
func nextHop(r spec.Route, list []source) netip.Addr {
	if r.GW.IsValid() {
		return r.GW
	}
	for _, src := range list {
		if src.Gateway.IsValid() && src.Gateway.Is4() == r.Dst.Addr().Is4() {
			return src.Gateway
		}
	}
	return netip.Addr{}
}
