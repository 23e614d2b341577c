// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// TestSources uses bridges and single addresses, in each of the chains that may jump to them.
// iptables can print the rules. Another owner's rule stays, and nothing else is left.
func TestSources(t *testing.T) {
	const one, two = "aaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbb"
	for name, setup := range map[string]string{
		"policy": "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
		"docker": `iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER
			iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER`,
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			sh(t, setup)
			before := sh(t, dump)
			owned := func(key string, isNew bool, addrs ...string) (out []Source) {
				for _, s := range prefixes(addrs...) {
					s.Owner, s.New = nft.Comment(key, "pods", "c1", "eth0"), isNew
					out = append(out, s)
				}
				return out
			}
			bridge := On("cni0", netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64"))
			first, second := owned(one, true, "10.2.0.5/32", "fd00:2::5/128"), owned(two, true, "10.2.0.6/32")
			commit(t, c, Accept(bridge, ""), Accept(first, ""), Accept(second, ""))
			after := sh(t, dump)
			golden(t, "sources-"+name, after)
			commit(t, c, Accept(bridge, ""), Accept(owned(one, false, "10.2.0.5/32", "fd00:2::5/128"), ""))
			if again := sh(t, dump); again != after {
				t.Errorf("a second look changed it:\n%s", again)
			}
			for _, rule := range []string{"-s 10.1.0.0/16", "-d 10.1.0.0/16", "-s 10.2.0.6/32"} {
				sh(t, `iptables-nft-save -t filter | sed -n "s,^-A \([A-Z-]* `+rule+` .*\),iptables-nft -D \1,p" | sh`)
				if sh(t, dump) == after {
					t.Fatalf("%s is still there", rule)
				}
				commit(t, c, Accept(bridge, ""), Accept(owned(two, false, "10.2.0.6/32"), ""))
				if got := sh(t, dump); sortLines(got) != sortLines(after) {
					t.Errorf("without %s it became:\n%s", rule, got)
				}
			}
			commit(t, c, Unaccept(Owned(one), ""))
			if got := sh(t, dump); strings.Contains(got, one) || strings.Count(got, two) != 2 {
				t.Errorf("after the first owner went:\n%s", got)
			}
			commit(t, c, Unaccept(Owned(one), ""), Unaccept(bridge, ""))
			if got := sh(t, dump); strings.Contains(got, "cni0") || strings.Count(got, two) != 2 {
				t.Errorf("after the bridge went:\n%s", got)
			}
			commit(t, c, Unaccept(Owned(two), ""))
			if got := sh(t, dump); sortLines(got) != sortLines(before) {
				t.Errorf("left behind:\n%s\nwas:\n%s", got, before)
			}
		})
	}
}

// iptables prints what our rules should mean.
func TestSourcesAreIptables(t *testing.T) {
	c := open(t)
	sh(t, "iptables-nft -P FORWARD DROP")
	commit(t, c, Accept(On("cni0", netip.MustParsePrefix("10.1.0.0/16")), ""))
	sh(t, `iptables-nft -C CNI-FORWARD -d 10.1.0.0/16 -o cni0 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment "patchbay accepts 10.1.0.0/16 on cni0" -j ACCEPT
		iptables-nft -C CNI-FORWARD -s 10.1.0.0/16 -i cni0 -m comment --comment "patchbay accepts 10.1.0.0/16 on cni0" -j ACCEPT`)
}
