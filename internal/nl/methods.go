// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
)

// The library describes these methods. Those that list something repeat a dump that the kernel
// interrupted.

func (l *library) FilterAdd(filter netlink.Filter) error {
	return l.do(func(h *netlink.Handle) error { return h.FilterAdd(filter) })
}

func (l *library) LinkAdd(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkAdd(link) })
}

func (l *library) LinkDel(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkDel(link) })
}

func (l *library) LinkSetARPOff(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetARPOff(link) })
}

func (l *library) LinkSetAllmulticastOff(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetAllmulticastOff(link) })
}

func (l *library) LinkSetAllmulticastOn(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetAllmulticastOn(link) })
}

func (l *library) LinkSetDown(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetDown(link) })
}

func (l *library) LinkSetNoMaster(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetNoMaster(link) })
}

func (l *library) LinkSetUp(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetUp(link) })
}

func (l *library) NeighDel(neigh *netlink.Neigh) error {
	return l.do(func(h *netlink.Handle) error { return h.NeighDel(neigh) })
}

func (l *library) NeighSet(neigh *netlink.Neigh) error {
	return l.do(func(h *netlink.Handle) error { return h.NeighSet(neigh) })
}

func (l *library) QdiscAdd(qdisc netlink.Qdisc) error {
	return l.do(func(h *netlink.Handle) error { return h.QdiscAdd(qdisc) })
}

func (l *library) QdiscDel(qdisc netlink.Qdisc) error {
	return l.do(func(h *netlink.Handle) error { return h.QdiscDel(qdisc) })
}

func (l *library) RouteAdd(route *netlink.Route) error {
	return l.do(func(h *netlink.Handle) error { return h.RouteAdd(route) })
}

func (l *library) RouteAddEcmp(route *netlink.Route) error {
	return l.do(func(h *netlink.Handle) error { return h.RouteAddEcmp(route) })
}

func (l *library) RouteAppend(route *netlink.Route) error {
	return l.do(func(h *netlink.Handle) error { return h.RouteAppend(route) })
}

func (l *library) RouteDel(route *netlink.Route) error {
	return l.do(func(h *netlink.Handle) error { return h.RouteDel(route) })
}

func (l *library) RouteReplace(route *netlink.Route) error {
	return l.do(func(h *netlink.Handle) error { return h.RouteReplace(route) })
}

func (l *library) RuleAdd(rule *netlink.Rule) error {
	return l.do(func(h *netlink.Handle) error { return h.RuleAdd(rule) })
}

func (l *library) RuleDel(rule *netlink.Rule) error {
	return l.do(func(h *netlink.Handle) error { return h.RuleDel(rule) })
}

func (l *library) SetPromiscOff(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.SetPromiscOff(link) })
}

func (l *library) SetPromiscOn(link netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.SetPromiscOn(link) })
}

func (l *library) AddrAdd(link netlink.Link, addr *netlink.Addr) error {
	return l.do(func(h *netlink.Handle) error { return h.AddrAdd(link, addr) })
}

func (l *library) AddrDel(link netlink.Link, addr *netlink.Addr) error {
	return l.do(func(h *netlink.Handle) error { return h.AddrDel(link, addr) })
}

func (l *library) AddrReplace(link netlink.Link, addr *netlink.Addr) error {
	return l.do(func(h *netlink.Handle) error { return h.AddrReplace(link, addr) })
}

func (l *library) LinkAddAltName(link netlink.Link, name string) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkAddAltName(link, name) })
}

func (l *library) LinkDelAltName(link netlink.Link, name string) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkDelAltName(link, name) })
}

func (l *library) LinkSetAlias(link netlink.Link, name string) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetAlias(link, name) })
}

func (l *library) LinkSetHairpin(link netlink.Link, on bool) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetHairpin(link, on) })
}

func (l *library) LinkSetHardwareAddr(link netlink.Link, mac net.HardwareAddr) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetHardwareAddr(link, mac) })
}

func (l *library) LinkSetIsolated(link netlink.Link, on bool) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetIsolated(link, on) })
}

func (l *library) LinkSetMTU(link netlink.Link, n int) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetMTU(link, n) })
}

func (l *library) LinkSetMaster(link netlink.Link, master netlink.Link) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetMaster(link, master) })
}

func (l *library) LinkSetName(link netlink.Link, name string) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetName(link, name) })
}

func (l *library) LinkSetNsFd(link netlink.Link, n int) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetNsFd(link, n) })
}

func (l *library) LinkSetTxQLen(link netlink.Link, n int) error {
	return l.do(func(h *netlink.Handle) error { return h.LinkSetTxQLen(link, n) })
}

func (l *library) AddrList(link netlink.Link, family int) (out []netlink.Addr, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.AddrList(link, family); return err })
	return out, err
}

func (l *library) BridgeVlanList() (out map[int32][]*vnl.BridgeVlanInfo, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.BridgeVlanList(); return err })
	return out, err
}

func (l *library) FilterList(link netlink.Link, parent uint32) (out []netlink.Filter, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.FilterList(link, parent); return err })
	return out, err
}

func (l *library) LinkList() (out []netlink.Link, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.LinkList(); return err })
	return out, err
}

func (l *library) GetNetNsIdByFd(fd int) (id int, err error) {
	err = l.do(func(h *netlink.Handle) error { id, err = h.GetNetNsIdByFd(fd); return err })
	return id, err
}

func (l *library) LinkByName(name string) (out netlink.Link, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.LinkByName(name); return err })
	return out, err
}

func (l *library) NeighList(index, family int) (out []netlink.Neigh, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.NeighList(index, family); return err })
	return out, err
}

func (l *library) QdiscList(link netlink.Link) (out []netlink.Qdisc, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.QdiscList(link); return err })
	return out, err
}

func (l *library) RouteGet(to net.IP) (out []netlink.Route, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.RouteGet(to); return err })
	return out, err
}

func (l *library) RouteGetWithOptions(to net.IP, how *netlink.RouteGetOptions) (out []netlink.Route, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.RouteGetWithOptions(to, how); return err })
	return out, err
}

func (l *library) RouteListFiltered(family int, filter *netlink.Route, mask uint64) (out []netlink.Route, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.RouteListFiltered(family, filter, mask); return err })
	return out, err
}

func (l *library) RuleList(family int) (out []netlink.Rule, err error) {
	err = l.list(func(h *netlink.Handle) error { out, err = h.RuleList(family); return err })
	return out, err
}

func (l *library) BridgeVlanAdd(link netlink.Link, vid uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *netlink.Handle) error { return h.BridgeVlanAdd(link, vid, pvid, untagged, self, master) })
}

func (l *library) BridgeVlanAddRange(link netlink.Link, vid, end uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *netlink.Handle) error {
		return h.BridgeVlanAddRange(link, vid, end, pvid, untagged, self, master)
	})
}

func (l *library) BridgeVlanDel(link netlink.Link, vid uint16, pvid, untagged, self, master bool) error {
	return l.do(func(h *netlink.Handle) error { return h.BridgeVlanDel(link, vid, pvid, untagged, self, master) })
}
