// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	prefixes "github.com/patchbay-net/patchbay/internal/prefix" // the tests have a function prefix
)

// IPVSLink is where kube-proxy in mode ipvs keeps the addresses of Services. Its packets to pods come from the hook
// output, as those of the node itself.
const IPVSLink = "kube-ipvs0"

// Bypassed and Unbypassed say what IPVSLink means for policies, and what helps.
const (
	Bypassed   = "kube-proxy is in mode ipvs: packets that reach a pod through a Service look like the node's own, so network policies do not apply to them"
	Unbypassed = "set the mode nftables or iptables in kube-proxy's configuration; Kubernetes has deprecated ipvs"
)

// NodeReach returns all addresses by which a pod may reach this node: its own, and the broadcast and multicast
// addresses that it listens to.
func NodeReach() ([]netip.Addr, error) {
	own, _, err := NodeAddresses()
	if err != nil {
		return nil, err
	}
	list, err := addressesHere()
	for _, a := range list {
		own = append(own, shared(a)...)
	}
	return own, err
}

// shared returns the broadcast addresses of the network of an address. Before Linux 5.14 the first address is one,
// too. In IPv6 the first address is that of any router of the network (RFC 4291, 2.6.1), and a node is a router.
func shared(a netlink.Addr) (list []netip.Addr) {
	addr, ok := netip.AddrFromSlice(a.IP)
	ones, _ := a.Mask.Size()
	p, err := addr.Unmap().Prefix(ones)
	if !ok || err != nil || addr.IsLoopback() || prefixes.IsLinkLocal(addr) || p.Bits() > p.Addr().BitLen()-2 {
		return nil
	}
	if p.Addr().Is6() {
		return []netip.Addr{p.Addr()}
	}
	list = []netip.Addr{p.Addr(), prefixes.Last(p)}
	if other, ok := netip.AddrFromSlice(a.Broadcast.To4()); ok && other != list[1] {
		list = append(list, other)
	}
	return list
}

func addressesHere() ([]netlink.Addr, error) {
	list, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	return list, nil
}

// NodeAddresses returns this node's own addresses, without loopback and link-local IPv6 addresses. It
// returns separately the addresses of Services that kube-proxy in mode ipvs gave the node.
func NodeAddresses() (own, services []netip.Addr, err error) {
	links, err := nl.Retry(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list the node's links: %w", err)
	}
	ipvs := 0
	for _, l := range links {
		if l.Attrs().Name == IPVSLink {
			ipvs = l.Attrs().Index
		}
	}
	list, err := addressesHere()
	if err != nil {
		return nil, nil, err
	}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		switch addr = addr.Unmap(); {
		case !ok || addr.IsLoopback() || addr.Is6() && addr.IsLinkLocalUnicast():
		case a.LinkIndex == ipvs:
			services = append(services, addr)
		default:
			own = append(own, addr)
		}
	}
	return own, services, nil
}
