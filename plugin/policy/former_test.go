// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/paths"
)

// An address is noted from a DEL until an ADD has ended its connections.
func TestFormer(t *testing.T) {
	p := paths.Paths{Run: t.TempDir() + "/run"}
	a, b := netip.MustParseAddr("10.90.0.5"), netip.MustParseAddr("fd90::5")
	if hadFormer(p, []netip.Addr{a, b}) {
		t.Error("no pod had an address")
	}
	must(t, noteFormer(p, nil))
	must(t, noteFormer(p, []netip.Addr{b}))
	if !hadFormer(p, []netip.Addr{a, b}) || hadFormer(p, []netip.Addr{a}) {
		t.Error("a pod had b, and none had a")
	}
	must(t, forgetFormer(p, []netip.Addr{a, b}))
	if hadFormer(p, []netip.Addr{a, b}) {
		t.Error("the connections are gone")
	}
	must(t, os.Remove(formerFile(p)))
	must(t, os.Mkdir(formerFile(p), 0o700))
	if !hadFormer(p, []netip.Addr{a}) {
		t.Error("a file that cannot be read says nothing")
	}
}
