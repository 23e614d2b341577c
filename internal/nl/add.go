// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// This file adds addresses and routes on our own socket, because a plain ADD needs nothing else of
// the library's (see library).

// AddAddr adds an address to a link. flags are IFA_F_*. An IPv4 address gets the broadcast address
// of its subnet, if the subnet has one (RFC 3021).
func (c *Conn) AddAddr(index int, p netip.Prefix, flags int) error {
	ip := p.Addr().AsSlice()
	head := vnl.NewIfAddrmsg(familyOf(p.Addr()))
	head.Index, head.Prefixlen = uint32(index), uint8(p.Bits())
	parts := []vnl.NetlinkRequestData{head, attr(unix.IFA_LOCAL, ip), attr(unix.IFA_ADDRESS, ip)}
	if flags != 0 {
		parts = append(parts, attr32(unix.IFA_FLAGS, uint32(flags)))
	}
	if p.Addr().Is4() && p.Bits() < 31 {
		parts = append(parts, attr(unix.IFA_BROADCAST, prefix.Last(p).AsSlice()))
	}
	_, err := c.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0, parts...)
	return err
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Route is a route through one link. Zero values mean the kernel's defaults.
type Route struct {
	Link         int // index
	Dst          netip.Prefix
	Gateway, Src netip.Addr
	MTU, AdvMSS  int // bytes
	Priority     int
	Table        int
	Scope        uint8 // RT_SCOPE_*
	Flags        int   // RTNH_F_*
}

// AddRoute adds a route. To an IPv6 route with the same destination and priority, the kernel adds
// another next hop.
func (c *Conn) AddRoute(r Route) error {
	return c.putRoute(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r, vnl.NewRtMsg())
}

// ReplaceRoute works like AddRoute, but replaces a route with the same destination and priority.
func (c *Conn) ReplaceRoute(r Route) error {
	return c.putRoute(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, r, vnl.NewRtMsg())
}

// DeleteRoute deletes a route. If there is none, IsNotFound recognises the error.
func (c *Conn) DeleteRoute(r Route) error {
	return c.putRoute(unix.RTM_DELROUTE, 0, r, vnl.NewRtDelMsg())
}

// RefuseRoute adds a route of type unreachable with a protocol number. If the kernel has a route with the
// same destination and priority, the error is EEXIST.
func (c *Conn) RefuseRoute(dst netip.Prefix, protocol uint8) error {
	head := vnl.NewRtMsg()
	head.Family, head.Dst_len = uint8(familyOf(dst.Addr())), uint8(dst.Bits())
	head.Type, head.Protocol = unix.RTN_UNREACHABLE, protocol
	_, err := c.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0, head, attr(unix.RTA_DST, dst.Addr().AsSlice()))
	return err
}

func (c *Conn) putRoute(what, flags int, r Route, head *vnl.RtMsg) error {
	_, err := c.request(what, flags|unix.NLM_F_ACK, 0, r.parts(head)...)
	return err
}

func (r Route) parts(head *vnl.RtMsg) []vnl.NetlinkRequestData {
	head.Family, head.Dst_len = uint8(familyOf(r.Dst.Addr())), uint8(r.Dst.Bits())
	head.Scope, head.Flags = r.Scope, uint32(r.Flags)
	parts := []vnl.NetlinkRequestData{head, attr(unix.RTA_DST, r.Dst.Addr().AsSlice()), attr32(unix.RTA_OIF, uint32(r.Link))}
	if r.Table > 0 {
		head.Table = unix.RT_TABLE_UNSPEC // RTA_TABLE counts; it has more than 8 bits
		parts = append(parts, attr32(unix.RTA_TABLE, uint32(r.Table)))
	}
	if r.Gateway.IsValid() {
		parts = append(parts, attr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	if r.Src.IsValid() {
		parts = append(parts, attr(unix.RTA_PREFSRC, r.Src.AsSlice()))
	}
	if r.Priority > 0 {
		parts = append(parts, attr32(unix.RTA_PRIORITY, uint32(r.Priority)))
	}
	return append(parts, r.metrics()...)
}

func (r Route) metrics() []vnl.NetlinkRequestData {
	if r.MTU <= 0 && r.AdvMSS <= 0 {
		return nil
	}
	list := attr(unix.RTA_METRICS, nil)
	if r.MTU > 0 {
		list.AddRtAttr(unix.RTAX_MTU, vnl.Uint32Attr(uint32(r.MTU)))
	}
	if r.AdvMSS > 0 {
		list.AddRtAttr(unix.RTAX_ADVMSS, vnl.Uint32Attr(uint32(r.AdvMSS)))
	}
	return []vnl.NetlinkRequestData{list}
}
