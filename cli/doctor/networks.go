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

	"github.com/patchbay-net/patchbay/internal/nl"
)

// overlaps finds two networks that assign the same addresses, and host routes to elsewhere
// inside a network's subnet.
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

// common finds ranges of two networks that share addresses. Networks on one bridge or
// master may share a subnet, but not a range in it.
func common(a, b *Network) (x, y string, ok bool) {
	if a.Name == b.Name {
		return "", "", false // the second one is never used; the check of configurations reports it
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

// inTheWay reports the host's routes that overlap a subnet and do not lead to the
// network's own links.
func (n *Node) inTheWay(net *Network, subnet netip.Prefix, routes []netlink.Route) (found []Finding) {
	for _, r := range routes {
		to, ok := prefixOf(r.Dst)
		if !ok || to.Bits() == 0 || !to.Overlaps(subnet) || n.ownLink(net, r) {
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

func prefixOf(dst interface{ String() string }) (netip.Prefix, bool) {
	if dst == nil {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(dst.String())
	return p, err == nil && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast()
}

// ownLink reports whether a route leads to the network: to its bridge or master, or to a
// veth, as ptp's routes do.
func (n *Node) ownLink(net *Network, r netlink.Route) bool {
	link, err := n.Host.LinkAt(r.LinkIndex)
	if err != nil {
		return false
	}
	name := link.Attrs().Name
	ways, _ := n.waysOut(unix.AF_UNSPEC) // the route is one of those that it reads
	return slices.ContainsFunc(net.Members, func(m Member) bool {
		return m.bridge() == name || m.Master == name || m.Type == "ptp" && link.Type() == "veth" ||
			m.Master == "" && (m.Type == "macvlan" || m.Type == "ipvlan") && slices.Contains(ways, name)
	})
}

// bridges finds networks that share a bridge with contradicting settings, and an address
// of the bridge that no network configures, left from an older configuration.
func bridges(_ context.Context, n *Node) (found []Finding, err error) {
	uses := make(map[string][]use)
	var order []string
	for _, net := range n.Networks {
		for _, m := range net.Members {
			if b := m.bridge(); b != "" {
				if uses[b] == nil {
					order = append(order, b)
				}
				uses[b] = append(uses[b], use{net.Name, m})
			}
		}
	}
	for _, b := range order {
		first := uses[b][0]
		for _, other := range uses[b][1:] {
			if other.member.MTU != first.member.MTU {
				found = append(found, warning(
					fmt.Sprintf("networks %s and %s share bridge %s with MTU %d and %d: which one counts depends on which attaches first", first.network, other.network, b, first.member.MTU, other.member.MTU),
					"give them the same mtu, or each a bridge of its own"))
			}
		}
		found = append(found, contested(b, uses[b])...)
		more, berr := n.bridgeItself(b, first.network)
		if berr != nil {
			return found, berr
		}
		found = append(found, more...)
	}
	return found, nil
}

// use is a network's plugin that uses a bridge.
type use struct {
	network string
	member  Member
}

// contested reports pairs of networks that exclude each other on a bridge: by incompatible
// gateways, or because one is internal.
func contested(bridge string, uses []use) (found []Finding) {
	for i, u := range uses {
		for _, other := range uses[i+1:] {
			if u.network == other.network {
				continue
			}
			if x, y, differ := gateways(&u.member, &other.member); differ {
				found = append(found, problem(
					fmt.Sprintf("networks %s and %s share bridge %s with the gateways %s and %s: an ADD to one of them is refused while the other's address is there, or with forceAddress takes it away",
						u.network, other.network, bridge, x, y),
					"give them the same gateway, or each a bridge and a subnet of its own"))
			}
			if a, b := u.member, other.member; a.Internal != b.Internal && a.VLAN == b.VLAN {
				found = append(found, problem(
					fmt.Sprintf("of networks %s and %s on bridge %s one is internal: an ADD to either is refused while the other has a container", u.network, other.network, bridge),
					"give each a bridge and a subnet of its own"))
			}
		}
	}
	return found
}

// gateways returns the addresses of two networks with isGateway that are incompatible on
// their bridge: different IPv4 addresses, or different IPv6 ones in the same subnet.
func gateways(a, b *Member) (x, y string, differ bool) {
	if !a.gateway() || !b.gateway() || a.VLAN != b.VLAN {
		return "", "", false
	}
	for _, p := range a.ranges() {
		for _, q := range b.ranges() {
			clash := p.Gateway.Is4() && q.Gateway.Is4() || p.Subnet.Masked().Overlaps(q.Subnet.Masked())
			if clash && p.Gateway != q.Gateway {
				return p.Gateway.String(), q.Gateway.String(), true
			}
		}
	}
	return "", "", false
}

// bridgeItself checks the link and its addresses.
func (n *Node) bridgeItself(name, network string) (found []Finding, err error) {
	link, err := n.Host.Link(name)
	if nl.IsNotFound(err) {
		return nil, nil // the first ADD makes it
	}
	if err != nil {
		return nil, err
	}
	if link.Type() != "bridge" {
		return []Finding{problem(fmt.Sprintf("%s, the bridge of network %s, is a %s", name, network, link.Type()),
			"remove or rename it, or name another bridge in the network")}, nil
	}
	addrs, err := n.Host.Addrs(link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	var known []netip.Prefix
	for _, net := range n.Networks {
		if slices.ContainsFunc(net.Members, func(m Member) bool { return m.bridge() == name }) {
			known = append(known, net.subnets()...)
		}
	}
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() || len(known) == 0 ||
			slices.ContainsFunc(known, func(s netip.Prefix) bool { return s.Contains(a.Prefix.Addr()) }) {
			continue
		}
		found = append(found, warning(fmt.Sprintf("bridge %s has the address %s, of no network that uses it (%s)", name, a.Prefix, join(known)),
			"ip address del %s dev %s, if it is left from an older configuration", a.Prefix, name))
	}
	return found, nil
}

func join(list []netip.Prefix) string {
	s := make([]string, len(list))
	for i, p := range list {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}

// mtus finds containers with a larger MTU than the link of the default route, which lose
// large packets where path MTU discovery is filtered, and bridges whose ports disagree.
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
	if least > 0 && bridge.MTU > least && m.MTU == 0 && hasPorts(links, bridge.Index) {
		found = append(found, warning(fmt.Sprintf("bridge %s of network %s has MTU %d, but the uplink, %s, only %d: large packets may get lost",
			bridge.Name, net.Name, bridge.MTU, way, least), "%s", fix))
	}
	for _, l := range links {
		if p := l.Attrs(); p.MasterIndex == bridge.Index && p.MTU > bridge.MTU {
			found = append(found, warning(fmt.Sprintf("port %s has MTU %d and its bridge %s only %d: larger frames are silently dropped", p.Name, p.MTU, bridge.Name, bridge.MTU),
				"ip link set %s mtu %d, and the same in the container", p.Name, bridge.MTU))
			break // one finding is enough
		}
	}
	return found
}

func hasPorts(links []netlink.Link, bridge int) bool {
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == bridge })
}
