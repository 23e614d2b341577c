// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package prefix_test

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

func TestLast(t *testing.T) {
	for p, want := range map[string]string{
		"10.1.2.3/32": "10.1.2.3", "10.1.2.2/31": "10.1.2.3", "10.1.2.77/24": "10.1.2.255", "10.1.2.0/23": "10.1.3.255", "0.0.0.0/0": "255.255.255.255",
		"fd00::1/128": "fd00::1", "fd00::/64": "fd00::ffff:ffff:ffff:ffff", "fd00::7/121": "fd00::7f", "::/0": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := prefix.Last(netip.MustParsePrefix(p)); got.String() != want {
			t.Errorf("%s: %s, not %s", p, got, want)
		}
	}
	if got := prefix.Last(netip.Prefix{}); got.IsValid() {
		t.Errorf("no prefix: %s", got)
	}
}

func TestIsLinkLocal(t *testing.T) {
	for a, want := range map[string]bool{
		"fe80::": true, "fe80::1%eth0": true, "febf:ffff::1": true, "fec0::": false, "fe7f::1": false, "169.254.1.1": false, "::ffff:169.254.1.1": false, "::": false,
	} {
		if got := prefix.IsLinkLocal(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
	if prefix.IsLinkLocal(netip.Addr{}) {
		t.Error("no address is link-local")
	}
}

func TestIsHost(t *testing.T) {
	for a, want := range map[string]bool{
		"10.0.0.1": true, "192.0.2.1": true, "fd00::1": true, "2001:db8::1": true, "fd00::1%eth0": false, "::ffff:10.0.0.1": false, "fe80::1": false,
		"127.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
	} {
		if got := prefix.IsHost(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
	if prefix.IsHost(netip.Addr{}) {
		t.Error("no address is a host's")
	}
}
