// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// defaultInterface is the link of the best default route of the main table, of
// IPv4 before IPv6. Of a route with several next hops it is the first.
func defaultInterface(conn *nl.Conn) (string, error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		index, err := defaultIndex(conn, family)
		if err != nil {
			return "", err
		}
		if index == 0 {
			continue
		}
		link, err := conn.LinkAt(index)
		if err != nil {
			return "", err
		}
		return link.Attrs().Name, nil
	}
	return "", invalid("no default route interface found")
}

// defaultIndex is 0 when there is none.
func defaultIndex(conn *nl.Conn, family int) (index int, err error) {
	filter := &netlink.Route{Dst: nil, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
	mask := netlink.RT_FILTER_DST | netlink.RT_FILTER_TABLE | netlink.RT_FILTER_TYPE
	routes, err := nl.Retry(func() ([]netlink.Route, error) { return conn.RouteListFiltered(family, filter, mask) })
	if err != nil {
		return 0, fmt.Errorf("look for the default route: %w", err)
	}
	best := 0
	for _, r := range routes {
		at := r.LinkIndex
		if at == 0 && len(r.MultiPath) > 0 {
			at = r.MultiPath[0].LinkIndex
		}
		if at != 0 && (index == 0 || r.Priority < best) {
			index, best = at, r.Priority
		}
	}
	return index, nil
}
