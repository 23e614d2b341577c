// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// ways checks what can stop traffic between containers and the outside, except firewalls: links
// that are down, routing rules that refuse packets, and neighbour entries that were set by hand.
func ways(_ context.Context, n *Node) (found []Finding, err error) {
	found, err = n.downLinks()
	_, list, _ := n.liveAttachments() // the check of attachments reports what cannot be read
	rules, rerr := n.Host.Rules()
	routes, gerr := n.routes()
	if !ofOthers(rules) {
		routes = nil // the kernel's own rules alone refuse nothing, so other checks of the routes are enough
	}
	seen := make(map[string]bool)
	for _, net := range n.Networks {
		bridge, lerr := n.Host.Link(net.link())
		if lerr != nil {
			continue // the network has no bridge, or no ADD has created it yet
		}
		at := bridge.Attrs()
		entries, nerr := n.Host.NeighList(at.Index, netlink.FAMILY_ALL)
		err = errors.Join(err, nerr)
		for _, a := range list {
			if a.Network != net.Name || a.Result == nil {
				continue
			}
			found = append(found, misled(a, entries, at.Name)...)
			for _, ip := range a.Result.IPs {
				if key := net.Name + ip.Address.Masked().String(); net.routes() && !seen[key] {
					seen[key] = true
					found = append(found, n.refused(net.Name, ip.Address.Addr().AsSlice(), at, routes)...)
				}
			}
		}
	}
	return found, errors.Join(err, rerr, gerr)
}

// ofOthers reports whether there are routing rules other than the kernel's own.
func ofOthers(rules []netlink.Rule) bool {
	for i := range rules {
		if p := rules[i].Priority; p > 0 && p < 32766 {
			return true
		}
	}
	return false
}

// downLinks reports links to the outside that are down, and the networks that use them.
func (n *Node) downLinks() (found []Finding, err error) {
	out, err := n.waysOut(unix.AF_UNSPEC)
	var users groups
	for _, net := range n.Networks {
		for _, name := range net.uplinks(out) {
			users.add(name, net.Name)
		}
	}
	for _, name := range users.order {
		link, lerr := n.Host.Link(name)
		if nl.IsNotFound(lerr) {
			continue // the check of status reports a missing master
		}
		if err = errors.Join(err, lerr); lerr == nil && isDown(link.Attrs()) {
			f := problem(name+" is down, or has no carrier: through it containers of "+strings.Join(users.names[name], ", ")+" reach the outside", "ip link set %s up; check its cable, and its other end", name)
			if len(out) > 1 && slices.Contains(out, name) {
				f.Level = Warning // there is another default route
			}
			found = append(found, f)
		}
	}
	return found, err
}

// uplinks returns the links through which a network reaches the outside. out lists the links of
// the host's default routes.
func (n *Network) uplinks(out []string) (names []string) {
	for i := range n.Members {
		m := &n.Members[i]
		child := m.Type == "macvlan" || m.Type == "ipvlan" || m.Type == "vlan"
		switch {
		case child && m.LinkInContainer:
		case child && m.Master != "":
			names = append(names, m.Master)
		case child, n.routes() && (m.gateway() || m.Type == "ptp"):
			names = append(names, out...)
		}
	}
	return names
}

func isDown(at *netlink.LinkAttrs) bool {
	return at.RawFlags&unix.IFF_UP == 0 || at.OperState == netlink.OperDown || at.OperState == netlink.OperLowerLayerDown
}

// refused asks the kernel how it routes packets from a container to the host's gateway, and
// back. Routing rules of other programs may refuse these packets or send them to a wrong link.
func (n *Node) refused(network string, addr net.IP, bridge *netlink.LinkAttrs, routes []netlink.Route) (found []Finding) {
	for i := range routes {
		r := &routes[i]
		if !isDefault(*r) || r.Gw == nil || (r.Gw.To4() != nil) != (addr.To4() != nil) {
			continue
		}
		found = n.oneWay(found, "send", network, addr, r.Gw, bridge.Index, 0)
		return n.oneWay(found, "are sent", network, r.Gw, addr, r.LinkIndex, bridge.Index)
	}
	return nil
}

// oneWay appends a finding if packets in one direction are refused or misrouted. from and to
// are their addresses. in and out are the indexes of the links; 0 means any link.
func (n *Node) oneWay(found []Finding, what, network string, from, to net.IP, in, out int) []Finding {
	got, err := n.Host.RouteGetWithOptions(to, &netlink.RouteGetOptions{IifIndex: in, SrcAddr: from})
	does := "refuse"
	switch {
	case err == nil && out != 0 && len(got) > 0 && got[0].LinkIndex != out:
		does = "lead astray"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENETUNREACH):
	default:
		return found
	}
	return append(found, problem(fmt.Sprintf("the host's routing rules %s what containers of %s %s, from %s to %s", does, network, what, from, to),
		"look at ip rule; doctor asked as ip route get %s from %s iif LINK does", to, from))
}

// misled reports permanent neighbour entries on a bridge that give a container's address another
// MAC address than the container has. The kernel never corrects such an entry.
func misled(a *Attached, entries []netlink.Neigh, bridge string) (found []Finding) {
	for _, ip := range a.Result.IPs {
		in := a.Result.Of(ip)
		for i := range entries {
			e := &entries[i]
			addr, mac := e.IP.String(), e.HardwareAddr.String()
			if in != nil && in.Mac != "" && e.State&netlink.NUD_PERMANENT != 0 && addr == ip.Address.Addr().String() && !strings.EqualFold(mac, in.Mac) {
				found = append(found, problem(a.Name()+": the host has a permanent neighbour "+addr+" on "+bridge+" with the Ethernet address "+mac+", which is not the container's",
					"ip neigh del %s dev %s", addr, bridge))
			}
		}
	}
	return found
}
