// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
)

// The library describes these methods. Those that return something repeat a dump that the kernel
// interrupted.

func (l *library) FilterAdd(f netlink.Filter) error { return call(l, (*handle).FilterAdd, f) }
func (l *library) LinkAdd(link netlink.Link) error  { return call(l, (*handle).LinkAdd, link) }
func (l *library) LinkDel(link netlink.Link) error  { return call(l, (*handle).LinkDel, link) }
func (l *library) LinkSetARPOff(link netlink.Link) error {
	return call(l, (*handle).LinkSetARPOff, link)
}
func (l *library) LinkSetAllmulticastOff(link netlink.Link) error {
	return call(l, (*handle).LinkSetAllmulticastOff, link)
}
func (l *library) LinkSetAllmulticastOn(link netlink.Link) error {
	return call(l, (*handle).LinkSetAllmulticastOn, link)
}
func (l *library) LinkSetDown(link netlink.Link) error {
	return call(l, (*handle).LinkSetDown, link)
}
func (l *library) LinkSetNoMaster(link netlink.Link) error {
	return call(l, (*handle).LinkSetNoMaster, link)
}
func (l *library) LinkSetUp(link netlink.Link) error   { return call(l, (*handle).LinkSetUp, link) }
func (l *library) NeighDel(n *netlink.Neigh) error     { return call(l, (*handle).NeighDel, n) }
func (l *library) NeighSet(n *netlink.Neigh) error     { return call(l, (*handle).NeighSet, n) }
func (l *library) QdiscAdd(q netlink.Qdisc) error      { return call(l, (*handle).QdiscAdd, q) }
func (l *library) QdiscDel(q netlink.Qdisc) error      { return call(l, (*handle).QdiscDel, q) }
func (l *library) RouteAdd(r *netlink.Route) error     { return call(l, (*handle).RouteAdd, r) }
func (l *library) RouteAddEcmp(r *netlink.Route) error { return call(l, (*handle).RouteAddEcmp, r) }
func (l *library) RouteAppend(r *netlink.Route) error  { return call(l, (*handle).RouteAppend, r) }
func (l *library) RouteDel(r *netlink.Route) error     { return call(l, (*handle).RouteDel, r) }
func (l *library) RouteReplace(r *netlink.Route) error { return call(l, (*handle).RouteReplace, r) }
func (l *library) RuleAdd(r *netlink.Rule) error       { return call(l, (*handle).RuleAdd, r) }
func (l *library) RuleDel(r *netlink.Rule) error       { return call(l, (*handle).RuleDel, r) }
func (l *library) SetPromiscOff(link netlink.Link) error {
	return call(l, (*handle).SetPromiscOff, link)
}
func (l *library) SetPromiscOn(link netlink.Link) error {
	return call(l, (*handle).SetPromiscOn, link)
}

func (l *library) AddrAdd(link netlink.Link, a *netlink.Addr) error {
	return call2(l, (*handle).AddrAdd, link, a)
}
func (l *library) AddrDel(link netlink.Link, a *netlink.Addr) error {
	return call2(l, (*handle).AddrDel, link, a)
}
func (l *library) AddrReplace(link netlink.Link, a *netlink.Addr) error {
	return call2(l, (*handle).AddrReplace, link, a)
}
func (l *library) LinkAddAltName(link netlink.Link, s string) error {
	return call2(l, (*handle).LinkAddAltName, link, s)
}
func (l *library) LinkDelAltName(link netlink.Link, s string) error {
	return call2(l, (*handle).LinkDelAltName, link, s)
}
func (l *library) LinkSetAlias(link netlink.Link, s string) error {
	return call2(l, (*handle).LinkSetAlias, link, s)
}
func (l *library) LinkSetHairpin(link netlink.Link, on bool) error {
	return call2(l, (*handle).LinkSetHairpin, link, on)
}
func (l *library) LinkSetHardwareAddr(link netlink.Link, mac net.HardwareAddr) error {
	return call2(l, (*handle).LinkSetHardwareAddr, link, mac)
}
func (l *library) LinkSetIsolated(link netlink.Link, on bool) error {
	return call2(l, (*handle).LinkSetIsolated, link, on)
}
func (l *library) LinkSetMTU(link netlink.Link, n int) error {
	return call2(l, (*handle).LinkSetMTU, link, n)
}
func (l *library) LinkSetMaster(link netlink.Link, m netlink.Link) error {
	return call2(l, (*handle).LinkSetMaster, link, m)
}
func (l *library) LinkSetName(link netlink.Link, s string) error {
	return call2(l, (*handle).LinkSetName, link, s)
}
func (l *library) LinkSetNsFd(link netlink.Link, fd int) error {
	return call2(l, (*handle).LinkSetNsFd, link, fd)
}
func (l *library) LinkSetTxQLen(link netlink.Link, n int) error {
	return call2(l, (*handle).LinkSetTxQLen, link, n)
}

func (l *library) AddrList(link netlink.Link, family int) ([]netlink.Addr, error) {
	return ask(l, func(h *handle) ([]netlink.Addr, error) { return h.AddrList(link, family) })
}
func (l *library) BridgeVlanList() (map[int32][]*vnl.BridgeVlanInfo, error) {
	return ask(l, (*handle).BridgeVlanList)
}
func (l *library) FilterList(link netlink.Link, parent uint32) ([]netlink.Filter, error) {
	return ask(l, func(h *handle) ([]netlink.Filter, error) { return h.FilterList(link, parent) })
}
func (l *library) GetNetNsIdByFd(fd int) (int, error) {
	return ask(l, func(h *handle) (int, error) { return h.GetNetNsIdByFd(fd) })
}
func (l *library) LinkList() ([]netlink.Link, error) { return ask(l, (*handle).LinkList) }
func (l *library) LinkByName(name string) (netlink.Link, error) {
	return ask(l, func(h *handle) (netlink.Link, error) { return h.LinkByName(name) })
}
func (l *library) NeighList(index, family int) ([]netlink.Neigh, error) {
	return ask(l, func(h *handle) ([]netlink.Neigh, error) { return h.NeighList(index, family) })
}
func (l *library) QdiscList(link netlink.Link) ([]netlink.Qdisc, error) {
	return ask(l, func(h *handle) ([]netlink.Qdisc, error) { return h.QdiscList(link) })
}
func (l *library) RouteGet(to net.IP) ([]netlink.Route, error) {
	return ask(l, func(h *handle) ([]netlink.Route, error) { return h.RouteGet(to) })
}
func (l *library) RouteGetWithOptions(to net.IP, o *netlink.RouteGetOptions) ([]netlink.Route, error) {
	return ask(l, func(h *handle) ([]netlink.Route, error) { return h.RouteGetWithOptions(to, o) })
}
func (l *library) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return ask(l, func(h *handle) ([]netlink.Route, error) { return h.RouteListFiltered(family, filter, mask) })
}
func (l *library) RuleList(family int) ([]netlink.Rule, error) {
	return ask(l, func(h *handle) ([]netlink.Rule, error) { return h.RuleList(family) })
}

func (l *library) BridgeVlanAdd(link netlink.Link, vid uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *handle) error { return h.BridgeVlanAdd(link, vid, pvid, untagged, self, master) })
}
func (l *library) BridgeVlanAddRange(link netlink.Link, vid, end uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *handle) error { return h.BridgeVlanAddRange(link, vid, end, pvid, untagged, self, master) })
}
func (l *library) BridgeVlanDel(link netlink.Link, vid uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *handle) error { return h.BridgeVlanDel(link, vid, pvid, untagged, self, master) })
}
