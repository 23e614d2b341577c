// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// An operator's accept rules serve as well as ours. CHECK fails only if the traffic is certainly
// dropped. If that cannot be decided, doctor warns.
func TestOperatorsAccepts(t *testing.T) {
	const cut, unsure = "problem: nothing accepts that of network pods (10.88.0.0/24)", "warning: may not accept all of network pods (10.88.0.0/24)"
	for _, c := range []struct {
		name  string
		rules []string // arguments of iptables-nft
		want  string
	}{
		{"by link", []string{"-A FORWARD -i br0 -j ACCEPT", "-A FORWARD -o br0 -j ACCEPT"}, ""},
		{"by subnet", []string{"-A FORWARD -s 10.88.0.0/24 -j ACCEPT", "-A FORWARD -d 10.88.0.0/24 -j ACCEPT"}, ""},
		{"by more than the subnet", []string{"-A FORWARD -s 10.0.0.0/8 -j ACCEPT", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}, ""},
		{"everything", []string{"-A FORWARD -j ACCEPT"}, ""},
		{"in a chain", []string{"-N OURS", "-A OURS -i br0 -j ACCEPT", "-A OURS -o br0 -j ACCEPT", "-A FORWARD -j OURS"}, ""},
		{"to one way out", []string{"-A FORWARD -i br0 -o up0 -j ACCEPT", "-A FORWARD -o br0 -j ACCEPT"}, unsure},
		{"of one container", []string{"-A FORWARD -s 10.88.0.7 -j ACCEPT", "-A FORWARD -o br0 -j ACCEPT"}, unsure},
		{"nothing", nil, cut},
		{"one direction", []string{"-A FORWARD -i br0 -j ACCEPT"}, cut},
		{"answers alone", []string{"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}, cut},
		{"one port", []string{"-A FORWARD -p tcp --dport 53 -j ACCEPT"}, cut},
		{"others'", []string{"-A FORWARD -i docker0 -j ACCEPT", "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}, cut},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.network("pods", pods)
			b.attach("pods", "c1")
			for _, args := range append(c.rules, "-P FORWARD DROP") {
				b.run("iptables-nft", strings.Fields(args)...)
			}
			want := []string{c.want}
			if c.want == "" {
				want = nil
			}
			b.finds("drop", want...)
			list, err := b.runtime().Load("pods")
			b.must(err)
			if err := b.runtime().Check(context.Background(), list, b.of("pods", "c1")); (err != nil) != (c.want == cut) {
				t.Errorf("CHECK says %v", err)
			}
		})
	}
}

// The warning ends if the operator adds the rules that doctor proposes, or other rules with the
// same effect.
func TestOperatorsTableAccepts(t *testing.T) {
	for name, rules := range map[string]string{
		"the hint":    "ip saddr 10.88.0.0/24 accept; ip daddr 10.88.0.0/24 accept; ct state established,related accept",
		"by link":     "iifname br0 accept; oifname br0 counter accept",
		"a supernet":  "ip saddr 10.0.0.0/8 accept; ct state established,related accept",
		"state first": "ct state vmap { established : accept, invalid : drop }; iifname br0 accept; oifname br0 accept",
		"a jump":      "jump sub",
		"":            "tcp dport 22 accept; iifname docker0 accept",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			nettest.Need(b, nettest.Program("nft"))
			b.network("pods", pods)
			b.attach("pods", "c1")
			text := "add table inet mine; add chain inet mine sub; add chain inet mine f { type filter hook forward priority 0; policy drop; };" +
				"add rule inet mine sub ip saddr 10.88.0.0/24 accept; add rule inet mine sub ip daddr 10.88.0.0/24 accept;"
			b.output(exec.Command("nft", text))
			for _, rule := range strings.Split(rules, "; ") {
				b.output(exec.Command("nft", "add rule inet mine f "+rule))
			}
			if name == "" {
				b.finds("drop", "warning: the nftables chain inet mine f drops forwarded traffic by policy")
				return
			}
			b.healthy("drop")
		})
	}
}
