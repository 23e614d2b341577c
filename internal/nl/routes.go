// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// IsNoRoute reports whether an error of RouteTo means that no route leads to the address, or that the route
// refuses it (unreachable, prohibit, blackhole).
func IsNoRoute(err error) bool {
	for _, no := range [...]unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// RouteTo returns the index of the link through which packets go to an address, and the type of the
// route, such as RTN_LOCAL. For the library's function, the process would have to grow its stack.
func (c *Conn) RouteTo(a netip.Addr) (link int, kind uint8, err error) {
	a = a.Unmap()
	head := &vnl.RtMsg{}
	head.Family, head.Dst_len = unix.AF_INET, uint8(a.BitLen())
	if a.Is6() {
		head.Family = unix.AF_INET6
	}
	routes, err := c.request(unix.RTM_GETROUTE, 0, unix.RTM_NEWROUTE, head, attr(unix.RTA_DST, a.AsSlice()))
	if err == nil && (len(routes) != 1 || len(routes[0]) < unix.SizeofRtMsg) {
		err = fmt.Errorf("%d answers", len(routes))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find route to %s: %w", a, err)
	}
	return number(find(routes[0][unix.SizeofRtMsg:], unix.RTA_OIF)), vnl.DeserializeRtMsg(routes[0]).Type, nil
}

// RouteAt is a route of the main table to one prefix.
type RouteAt struct {
	Type, Protocol uint8 // RTN_*, RTPROT_*
	Link, Priority int   // the link is 0 if the route has none, or several
}

// RoutesAt lists the routes of the main table to exactly this prefix, in the order in which the kernel looks at
// them. It decodes no other routes, of which the host may have many.
func (c *Conn) RoutesAt(dst netip.Prefix) (list []RouteAt, err error) {
	head := &vnl.RtMsg{}
	head.Family, head.Table = uint8(familyOf(dst.Addr())), unix.RT_TABLE_MAIN
	routes, err := Retry(func() ([][]byte, error) {
		return c.request(unix.RTM_GETROUTE, unix.NLM_F_DUMP, unix.RTM_NEWROUTE, head)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes to %s: %w", dst, err)
	}
	for _, data := range routes {
		if len(data) < unix.SizeofRtMsg {
			continue
		}
		got, attrs := vnl.DeserializeRtMsg(data), data[unix.SizeofRtMsg:]
		to, _ := netip.AddrFromSlice(find(attrs, unix.RTA_DST))
		if got.Table == unix.RT_TABLE_MAIN && int(got.Dst_len) == dst.Bits() && to == dst.Masked().Addr() {
			list = append(list, RouteAt{got.Type, got.Protocol, number(find(attrs, unix.RTA_OIF)), number(find(attrs, unix.RTA_PRIORITY))})
		}
	}
	slices.SortStableFunc(list, func(a, b RouteAt) int { return cmp.Compare(a.Priority, b.Priority) })
	return list, nil
}

// number returns the value of an attribute with 32 bits, or 0.
func number(value []byte) int {
	if len(value) != 4 {
		return 0
	}
	return int(vnl.NativeEndian().Uint32(value))
}

// LinkRoutes lists the unicast IPv4 and IPv6 routes of one link in a table, in the kernel's
// order. An IPv4 route with several next hops belongs to the link if all its next hops do. The kernel
// merges IPv6 routes of one destination and metric, as the default routes of two links, and prints one
// route. They are still several: each next hop can be deleted alone. So LinkRoutes returns this link's.
func (c *Conn) LinkRoutes(index, table int) (out []netlink.Route, err error) {
	all, err := c.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes of table %d: %w", table, err)
	}
	for _, r := range all {
		if r, ok := through(r, index); ok && r.Type == unix.RTN_UNICAST {
			out = append(out, r)
		}
	}
	return out, nil
}

// through returns the part of a route that leads through a link.
func through(r netlink.Route, index int) (netlink.Route, bool) {
	if len(r.MultiPath) == 0 {
		return r, r.LinkIndex == index
	}
	all := r.MultiPath
	r.MultiPath = slices.DeleteFunc(slices.Clone(all), func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex != index })
	switch {
	case len(r.MultiPath) == 0 || len(r.MultiPath) < len(all) && r.Family != unix.AF_INET6:
		return r, false
	case len(r.MultiPath) < len(all) && len(r.MultiPath) == 1:
		hop := r.MultiPath[0]
		r.MultiPath, r.LinkIndex, r.Gw, r.Flags = nil, hop.LinkIndex, hop.Gw, hop.Flags
	}
	return r, true
}

// DefaultLink returns the index of the link of the main table's default route, or 0 if there is
// none. Of several default routes, the one with the lowest metric counts, and of equal ones the
// first in the kernel's order. Of several next hops the first counts. family is AF_INET or
// AF_INET6. If unicast is set, DefaultLink skips routes that refuse packets. Such an IPv6 route
// has the link lo. Such an IPv4 route has no link, and DefaultLink always skips it.
func (c *Conn) DefaultLink(family int, unicast bool) (index int, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST} // Dst is nil for the default route
	mask := netlink.RT_FILTER_DST | netlink.RT_FILTER_TABLE
	if unicast {
		mask |= netlink.RT_FILTER_TYPE
	}
	routes, err := c.RouteListFiltered(family, filter, mask)
	if err != nil {
		return 0, err
	}
	least := 0
	for _, r := range routes {
		at := r.LinkIndex
		if at == 0 && len(r.MultiPath) > 0 {
			at = r.MultiPath[0].LinkIndex
		}
		if at != 0 && (index == 0 || r.Priority < least) {
			index, least = at, r.Priority
		}
	}
	return index, nil
}

// Rules lists the policy rules of both families.
func (c *Conn) Rules() ([]netlink.Rule, error) {
	rules, err := c.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return rules, nil
}

// FreeTable returns the lowest number from first on of an unused routing table. No rule names
// that table, no route is in it, and no VRF uses it. The table is not in others, and is not one of
// the kernel's tables (253 default, 254 main, 255 local). The caller must hold Lock from this
// call until it uses the table.
func (c *Conn) FreeTable(first int, others ...int) (int, error) {
	used := map[int]bool{unix.RT_TABLE_DEFAULT: true, unix.RT_TABLE_MAIN: true, unix.RT_TABLE_LOCAL: true}
	for _, t := range others {
		used[t] = true
	}
	if err := c.tablesInUse(used); err != nil {
		return 0, fmt.Errorf("find a free routing table: %w", err)
	}
	for used[first] {
		first++
	}
	return first, nil
}

func (c *Conn) tablesInUse(used map[int]bool) error {
	rules, err := c.Rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		used[r.Table] = true
	}
	routes, err := c.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, r := range routes {
		used[r.Table] = true
	}
	links, err := c.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if vrf, ok := l.(*netlink.Vrf); ok {
			used[int(vrf.Table)] = true
		}
	}
	return nil
}

// Lock takes the lock of the namespace, which the reference's sbr takes too. The lock is a
// flock on the namespace itself, so every path to the namespace gives the same lock. The lock
// ends with the process that holds it.
func (c *Conn) Lock(ctx context.Context) (unlock func(), err error) {
	if c.NS == nil {
		return nil, errors.New("lock namespace: the host's cannot be locked")
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.NS.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock namespace %s: %w", c.NS.Path(), err)
	}
	if err := durable.LockExclusiveLimited(ctx, fd); err != nil {
		unix.Close(fd) //nolint:errcheck // read only
		return nil, fmt.Errorf("lock namespace %s: %w", c.NS.Path(), err)
	}
	return func() { unix.Close(fd) }, nil //nolint:errcheck // read only
}
