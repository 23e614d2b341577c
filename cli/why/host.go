// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"net/netip"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

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
