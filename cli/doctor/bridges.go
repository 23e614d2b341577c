// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// bridges finds networks that share a bridge but contradict each other. It also finds addresses
// of a bridge that no network configures. An older configuration may have left them.
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

// use pairs a network with the plugin in it that uses a bridge.
type use struct {
	network string
	member  Member
}

// contested reports pairs of networks that cannot share a bridge, because their gateways
// conflict or because only one is internal.
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
			if a, b := u.member, other.member; a.internal() != b.internal() && a.Vlan == b.Vlan {
				found = append(found, problem(
					fmt.Sprintf("only one of the networks %s and %s on bridge %s is internal: an ADD to either is refused while the other has a container", u.network, other.network, bridge),
					"give each a bridge and a subnet of its own"))
			}
		}
	}
	return found
}

// gateways returns conflicting addresses of two networks that both set isGateway on one bridge.
// Two IPv4 addresses conflict if they are different. Two IPv6 addresses conflict only if they are
// also in one subnet.
func gateways(a, b *Member) (x, y string, differ bool) {
	if !a.gateway() || !b.gateway() || a.Vlan != b.Vlan {
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

// bridgeItself checks the bridge's link and its addresses.
func (n *Node) bridgeItself(name, network string) (found []Finding, err error) {
	link, err := n.Host.Link(name)
	if nl.IsNotFound(err) {
		return nil, nil // the first ADD creates the bridge
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
		found = append(found, warning(fmt.Sprintf("bridge %s has the address %s, which is in none of its networks (%s)", name, a.Prefix, join(known)),
			"ip address del %s dev %s, if it is left from an older configuration", a.Prefix, name))
	}
	return found, nil
}
