// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// IPVSLink is where kube-proxy in mode ipvs keeps the addresses of Services. Its packets to pods come from the hook
// output, as those of the node itself.
const IPVSLink = "kube-ipvs0"

// Bypassed and Unbypassed say what IPVSLink means for policies, and what helps.
const (
	Bypassed   = "kube-proxy is in mode ipvs: what goes through a Service reaches a pod like a packet of the node, so network policies do not hold for it"
	Unbypassed = "set the mode nftables or iptables in kube-proxy's configuration; Kubernetes has deprecated ipvs"
)

// NodeAddresses returns the addresses by which a pod may reach this node, without loopback and those of IPv6 that
// hold for one link only, and the addresses of Services that kube-proxy in mode ipvs gave it.
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
	list, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list the node's addresses: %w", err)
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
