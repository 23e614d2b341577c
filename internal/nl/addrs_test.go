// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"
	"net/netip"
	"testing"
)

func TestPrefixesThereAndBack(t *testing.T) {
	for _, s := range []string{"10.1.2.3/24", "0.0.0.0/0", "10.1.2.3/32", "2001:db8::7/64", "::/0", "::1/128"} {
		p := netip.MustParsePrefix(s)
		n := IPNet(p)
		if len(n.IP)*8 != p.Addr().BitLen() || n.String() != s {
			t.Errorf("%s became %v of %d bytes", s, n, len(n.IP))
		}
		if got := PrefixOf(n); got != p {
			t.Errorf("%s came back as %v", s, got)
		}
	}
}

func TestPrefixOf(t *testing.T) {
	in6, mask := net.IPv4(10, 1, 2, 3), net.CIDRMask(24, 32) // 16 bytes
	if got := PrefixOf(&net.IPNet{IP: in6, Mask: mask}); got != netip.MustParsePrefix("10.1.2.3/24") {
		t.Errorf("IPv4 in IPv6: %v", got)
	}
	if got := PrefixOf(nil); got != (netip.Prefix{}) {
		t.Errorf("nil: %v", got)
	}
	if got := PrefixOf(&net.IPNet{}); got.IsValid() {
		t.Errorf("empty: %v", got)
	}
	if n := IPNet(netip.Prefix{}); n == nil || n.IP != nil || n.Mask != nil {
		t.Errorf("invalid: %v", n)
	}
}

func TestAddrOf(t *testing.T) {
	for want, ip := range map[string]net.IP{
		"10.1.2.3": net.IPv4(10, 1, 2, 3).To4(), "10.1.2.4": net.IPv4(10, 1, 2, 4), "2001:db8::1": net.ParseIP("2001:db8::1"),
	} {
		if got := AddrOf(ip); got != netip.MustParseAddr(want) {
			t.Errorf("%v: %v", ip, got)
		}
	}
	for _, none := range []net.IP{nil, {1, 2, 3}} {
		if got := AddrOf(none); got.IsValid() {
			t.Errorf("%v: %v", none, got)
		}
	}
}
