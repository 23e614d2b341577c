// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// ipvsLink is where kube-proxy in mode ipvs keeps the addresses of Services.
const ipvsLink = "kube-ipvs0"

// Addresses returns the node's own addresses, without those of loopback and of single links, and the
// addresses of Services that kube-proxy in mode ipvs gave it.
func Addresses() (own, services []netip.Addr, err error) {
	links, err := nl.Retry(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list the node's links: %w", err)
	}
	ipvs := 0
	for _, l := range links {
		if l.Attrs().Name == ipvsLink {
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
		case !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast():
		case a.LinkIndex == ipvs:
			services = append(services, addr)
		default:
			own = append(own, addr)
		}
	}
	return own, services, nil
}

// IsService reports whether kube-proxy, in mode nftables or iptables, replaces an address by that of a
// pod. It does so before the policies judge.
func IsService(fw *nft.Conn, a netip.Addr) (bool, error) {
	family := nftables.TableFamilyIPv4
	if a.Is6() {
		family = nftables.TableFamilyIPv6
	}
	proxy, err := fw.ReadTable(family, "kube-proxy")
	if err != nil {
		return false, err
	}
	if proxy != nil {
		return clusterIP(proxy, a)
	}
	nat, err := fw.ReadTable(family, "nat")
	if err != nil || nat == nil {
		return false, err
	}
	for _, r := range nat.Rules["KUBE-SERVICES"] {
		if r.Mentions(a.AsSlice()) {
			return true, nil
		}
	}
	return false, nil
}

// clusterIP looks into the set of Services' addresses. A version of kube-proxy without it is not
// understood.
func clusterIP(proxy *nft.Table, a netip.Addr) (bool, error) {
	members, err := proxy.Members("cluster-ips")
	for _, m := range members {
		if string(m.Low) == string(a.AsSlice()) {
			return true, nil
		}
	}
	return false, err
}
