// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// These are values of the sysctl accept_ra. A host that forwards ignores router advertisements, unless the value is
// 2. It then also removes the default routes that it has from them.
const (
	acceptHost   = 1
	acceptRouter = 2
)

// Advertised returns the links with an IPv6 default route from a router advertisement that the kernel would ignore
// if the host forwards. If another program handles advertisements, accept_ra is 0, and must stay so.
func Advertised(conn *nl.Conn) (links []string, err error) {
	routes, err := conn.RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_RA},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("list the default routes of router advertisements: %w", err)
	}
	for _, r := range routes {
		link, err := conn.LinkAt(r.LinkIndex)
		if nl.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		name := link.Attrs().Name
		if value, ok := conn.IPv6Setting(r.LinkIndex, nl.AcceptRA); ok && value == acceptHost && !slices.Contains(links, name) {
			links = append(links, name)
		}
	}
	return links, nil
}

// keepRouters makes the kernel go on with router advertisements before the host forwards. Unlike the setting of
// forwarding, no note has its former value, which was 1 (Advertised), and `network rm` does not restore it: on a host that
// does not forward, 1 and 2 mean the same, and while something else makes it forward, 1 would end its default route.
func keepRouters(ctx context.Context, env *Env) error {
	links, err := Advertised(env.Host)
	s := Sysctls{Where: Host}
	for _, name := range links {
		s.List = append(s.List, nl.Setting{Key: AcceptRAKey(name), Value: strconv.Itoa(acceptRouter)})
	}
	if err != nil || len(s.List) == 0 {
		return err
	}
	_, err = s.Ensure(ctx, env)
	return err
}

// AcceptRAKey returns the sysctl accept_ra of a link.
func AcceptRAKey(link string) string { return "net/ipv6/conf/" + link + "/" + nl.AcceptRA.String() }
