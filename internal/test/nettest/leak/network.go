// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// network lists links, their addresses, queueing disciplines and filters, and
// the namespace's routes and policy rules.
func network() (State, error) {
	h, err := nl.Host("/proc")
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var s State
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Type() + " " + l.Attrs().Name
		s = append(s, line("link", l.Type(), l.Attrs().Name))
		more, err := onLink(h, l)
		if err != nil {
			return nil, err
		}
		s = append(s, more...)
	}
	routes, err := routing(h, names)
	return append(s, routes...), err
}

// onLink lists the objects on one link. A link that is deleted meanwhile has none.
func onLink(h *nl.Conn, l netlink.Link) (State, error) {
	name := l.Type() + " " + l.Attrs().Name
	addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", name, err)
	}
	var s State
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() { // the kernel makes the others with the link
			s = append(s, line("address", name, a.IPNet))
		}
	}
	qdiscs, err := h.QdiscList(l)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs of %s: %w", name, err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Handle != 0 { // 0 is the kernel's default one
			s = append(s, line("qdisc", name, q.Type(), netlink.HandleStr(q.Attrs().Handle)))
		}
	}
	return s, nil
}

// routing lists routes of every table and policy rules, without what the kernel
// derives from addresses (table local) and links (link-local, multicast).
func routing(h *nl.Conn, names map[int]string) (State, error) {
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var s State
	for _, r := range routes {
		derived := r.Table == unix.RT_TABLE_LOCAL || r.Dst != nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast())
		if !derived {
			s = append(s, line("route", names[r.LinkIndex], r.Dst, "via", r.Gw, "table", r.Table))
		}
	}
	rules, err := h.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		s = append(s, line("rule", r))
	}
	return s, nil
}
