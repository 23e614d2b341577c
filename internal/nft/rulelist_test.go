// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Rules for prefixes of different lengths are different rules, even if they have one address.
func TestSameRuleOfPrefixes(t *testing.T) {
	rule := func(prefix string) []expr.Any {
		return MatchPrefix(netip.MustParsePrefix(prefix), true, expr.CmpOpEq)
	}
	family := byte(nftables.TableFamilyINet)
	prefixes := []string{"10.0.0.0/8", "10.0.0.0/12", "10.0.0.0/16", "10.0.0.0/20", "10.0.0.0/24", "fd00::/12", "fd00::/16", "fd00::/60", "fd00::/64"}
	for _, have := range prefixes {
		var stored []Expr
		for _, e := range rule(have) {
			b, err := expr.Marshal(family, e)
			if err != nil {
				t.Fatal(err)
			}
			x, err := decodeExpr(b)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, x)
		}
		for _, want := range prefixes {
			if got := sameRule(family, stored, rule(want)); got != (have == want) {
				t.Errorf("sameRule(%s, %s) = %v", have, want, got)
			}
		}
	}
}
