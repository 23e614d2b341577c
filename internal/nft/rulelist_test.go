// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// nft does not write a rule that compares bytes outside its mask, but a user can. It never matches.
func TestRuleThatNeverMatches(t *testing.T) {
	family, want := byte(nftables.TableFamilyINet), MatchPrefix(netip.MustParsePrefix("10.0.0.0/8"), true, expr.CmpOpEq)
	never := MatchPrefix(netip.MustParsePrefix("10.0.0.0/8"), true, expr.CmpOpEq)
	never[len(never)-1].(*expr.Cmp).Data = []byte{10, 1, 2, 3}
	if sameRule(family, stored(t, family, never), want) || !sameRule(family, stored(t, family, want), want) {
		t.Error("a rule that never matches counts as the same")
	}
}

// stored returns expressions as the kernel returns them.
func stored(t *testing.T, family byte, rule []expr.Any) (list []Expr) {
	t.Helper()
	for _, e := range rule {
		b, err := expr.Marshal(family, e)
		if err != nil {
			t.Fatal(err)
		}
		x, err := decodeExpr(b)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	return list
}

// Rules for prefixes of different lengths are different rules, even if they have one address.
func TestSameRuleOfPrefixes(t *testing.T) {
	rule := func(prefix string) []expr.Any {
		return MatchPrefix(netip.MustParsePrefix(prefix), true, expr.CmpOpEq)
	}
	family := byte(nftables.TableFamilyINet)
	prefixes := []string{"10.0.0.0/8", "10.0.0.0/12", "10.0.0.0/16", "10.0.0.0/20", "10.0.0.0/24", "fd00::/12", "fd00::/16", "fd00::/60", "fd00::/64"}
	for _, have := range prefixes {
		kernels := stored(t, family, rule(have))
		for _, want := range prefixes {
			if got := sameRule(family, kernels, rule(want)); got != (have == want) {
				t.Errorf("sameRule(%s, %s) = %v", have, want, got)
			}
		}
	}
}
