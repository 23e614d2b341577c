// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// LegacyDrops reads the list of a family only if one of the given prefixes has that family. The
// other family's list is a directory here, so reading it would fail.
func TestLegacyDropsOfOneFamily(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("198.18.77.0/24"), netip.MustParsePrefix("fd00:77::/64")
	for _, one := range []struct {
		broken, whole string
		concerned     netip.Prefix
	}{{"ip6", "ip", v4}, {"ip", "ip6", v6}} {
		net := filepath.Join(t.TempDir(), "thread-self/net")
		if err := os.MkdirAll(filepath.Join(net, one.broken+"_tables_names"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(net, one.whole+"_tables_names"), []byte("nat\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		proc := filepath.Join(net, "../..")
		if err := LegacyDrops(proc, []netip.Prefix{one.concerned}); err != nil {
			t.Errorf("%s: %v", one.concerned, err)
		}
		for _, both := range [][]netip.Prefix{nil, {v4, v6}} {
			if LegacyDrops(proc, both) == nil {
				t.Errorf("%s: the list of %s was not read", both, one.broken)
			}
		}
	}
}
