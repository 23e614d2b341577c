// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// overlaps finds two kinds of conflict. In one, two networks assign the same addresses. In the
// other, a route of the host leads a part of a network's subnet to another link.
func overlaps(_ context.Context, n *Node) (found []Finding, err error) {
	for i, a := range n.Networks {
		for _, b := range n.Networks[i+1:] {
			if x, y, ok := common(a, b); ok {
				found = append(found, problem(
					fmt.Sprintf("networks %s (%s) and %s (%s) give out the same addresses", a.Name, x, b.Name, y),
					"give one of them another subnet, or both ranges that do not overlap"))
			}
		}
	}
	routes, err := n.routes()
	if err != nil {
		return found, err
	}
	for _, net := range n.Networks {
		for _, subnet := range net.subnets() {
			found = append(found, n.inTheWay(net, subnet, routes)...)
		}
	}
	return found, nil
}

// common finds ranges of two networks that share addresses. Two networks on one bridge or
// master may share a subnet, but not a range in it.
func common(a, b *Network) (x, y string, ok bool) {
	if a.Name == b.Name {
		return "", "", false // both have one name, so the second is never used; the check configurations reports that
	}
	for i := range a.Members {
		for j := range b.Members {
			for _, p := range a.Members[i].sets() {
				for _, q := range b.Members[j].sets() {
					if p.Overlaps(q) {
						return p.String(), q.String(), true
					}
				}
			}
		}
	}
	return "", "", false
}

// inTheWay reports routes of the host that overlap the subnet of a network but do not lead to
// the network's links.
func (n *Node) inTheWay(net *Network, subnet netip.Prefix, routes []netlink.Route) (found []Finding) {
	for _, r := range routes {
		to, ok := prefixOf(r.Dst)
		if !ok || to.Bits() == 0 || !to.Overlaps(subnet) || n.ownLink(net, r) || n.harmless(net, subnet, r, to) {
			continue
		}
		dev := "nowhere"
		if link, err := n.Host.LinkAt(r.LinkIndex); err == nil {
			dev = link.Attrs().Name
		}
		what := fmt.Sprintf("the host's route to %s by %s overlaps %s of network %s", to, dev, subnet, net.Name)
		if to.Bits() >= subnet.Bits() {
			found = append(found, problem(what+": answers to its containers are misrouted", "give the network another subnet"))
		} else {
			found = append(found, warning(what+": hosts there cannot be reached from here", "give the network another subnet, unless that is intended"))
		}
	}
	return found
}

// hasAddress reports whether a link has an address.
func (n *Node) hasAddress(link netlink.Link, a netip.Addr) bool {
	list, err := n.Host.AddrList(link, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(list, func(has netlink.Addr) bool {
		got, ok := netip.AddrFromSlice(has.IP)
		return ok && got.Unmap() == a
	})
}

// harmless reports whether an overlapping route diverts no packets. The kernel makes a route to each IPv6
// address of the host, such as that of the agent's tunnel, which no container gets. With WireGuard, the agent makes an
// unreachable route to all pods of the cluster, so that their packets never leave in clear text. During a
// migration, the bridge of the node's former network has the subnet of a ptp network, but the host routes
// to the containers of ptp come first.
func (n *Node) harmless(net *Network, subnet netip.Prefix, r netlink.Route, to netip.Prefix) bool {
	if r.Type == unix.RTN_UNREACHABLE {
		return to.Bits() < subnet.Bits()
	}
	link, err := n.Host.LinkAt(r.LinkIndex)
	if err == nil && to.IsSingleIP() && n.hasAddress(link, to.Addr()) {
		return true
	}
	return err == nil && link.Type() == "bridge" && to == subnet.Masked() && slices.ContainsFunc(net.Members, func(m Member) bool { return m.Type == "ptp" })
}

func prefixOf(dst interface{ String() string }) (netip.Prefix, bool) {
	if dst == nil {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(dst.String())
	return p, err == nil && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast()
}

// ownLink reports whether a route leads to one of the network's links: its bridge, its master,
// or a veth as with ptp.
func (n *Node) ownLink(net *Network, r netlink.Route) bool {
	link, err := n.Host.LinkAt(r.LinkIndex)
	if err != nil {
		return false
	}
	name := link.Attrs().Name
	ways, _ := n.waysOut(unix.AF_UNSPEC) // routes were read before, so reading them again should not fail
	return slices.ContainsFunc(net.Members, func(m Member) bool {
		return m.bridge() == name || m.Master == name || m.Type == "ptp" && link.Type() == "veth" ||
			m.Master == "" && (m.Type == "macvlan" || m.Type == "ipvlan") && slices.Contains(ways, name)
	})
}

func join(list []netip.Prefix) string {
	s := make([]string, len(list))
	for i, p := range list {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}

// mtus finds containers whose MTU is larger than the MTU of the link with the default route. If a
// firewall drops path MTU discovery, they lose large packets. mtus also finds bridges with another
// MTU than their ports.
func mtus(_ context.Context, n *Node) (found []Finding, err error) {
	ways, err := n.waysOut(unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	least, way := 0, ""
	for _, name := range ways {
		if link, lerr := n.Host.Link(name); lerr == nil && (least == 0 || link.Attrs().MTU < least) {
			least, way = link.Attrs().MTU, name
		}
	}
	links, err := n.Host.LinkList()
	if err != nil {
		return nil, err
	}
	for _, net := range n.Networks {
		for _, m := range net.Members {
			found = append(found, n.mtuOf(net, m, links, least, way)...)
		}
	}
	return found, nil
}

func (n *Node) mtuOf(net *Network, m Member, links []netlink.Link, least int, way string) (found []Finding) {
	fix := fmt.Sprintf(`"mtu": %d in the plugin %s of network %s, and attach its containers again`, least, m.Type, net.Name)
	if least > 0 && m.MTU > least && (m.bridge() != "" || m.Type == "ptp") {
		return []Finding{warning(fmt.Sprintf("network %s has MTU %d, but the uplink, %s, only %d: large packets may get lost", net.Name, m.MTU, way, least), "%s", fix)}
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == m.bridge() && l.Type() == "bridge" })
	if m.bridge() == "" || i < 0 {
		return nil
	}
	bridge := links[i].Attrs()
	if least > 0 && bridge.MTU > least && m.MTU == 0 && slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == bridge.Index }) {
		found = append(found, warning(fmt.Sprintf("bridge %s of network %s has MTU %d, but the uplink, %s, only %d: large packets may get lost",
			bridge.Name, net.Name, bridge.MTU, way, least), "%s", fix))
	}
	for _, l := range links {
		if p := l.Attrs(); p.MasterIndex == bridge.Index && p.MTU > bridge.MTU {
			found = append(found, warning(fmt.Sprintf("port %s has MTU %d and its bridge %s only %d: larger frames are silently dropped", p.Name, p.MTU, bridge.Name, bridge.MTU),
				"ip link set %s mtu %d, and the same in the container", p.Name, bridge.MTU))
			break // one finding per bridge is enough
		}
	}
	return found
}
