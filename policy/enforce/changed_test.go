// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft/trace"
	"github.com/patchbay-net/patchbay/policy"
)

// TestJudgeOfChangedRules changes rules by hand. What Judge says is what connections do, and it names a
// rule that no policy has.
func TestJudgeOfChangedRules(t *testing.T) {
	p := newPair(t, Options{})
	p.serve("[::]:80")
	p.serve("[::]:81")
	chain := kindPolicy[policy.Ingress] + hash("ingress shop/b")
	for _, c := range []struct {
		name, change string
		open80       trace.Fate
		open81       trace.Fate
		foreign      bool // of port 81
	}{
		{"as it was", "", trace.Accepted, trace.Dropped, false},
		{"a rule more", "insert rule inet patchbay " + chain + " tcp dport 81 accept", trace.Accepted, trace.Accepted, true},
		{"a rule with a comment", "insert rule inet patchbay " + chain + ` tcp dport 81 accept comment "mine"`, trace.Accepted, trace.Accepted, true},
		{"a rule that denies", "insert rule inet patchbay policy_egress ip saddr 10.1.1.0/24 tcp dport 80-81 reject", trace.Dropped, trace.Dropped, true},
		{"no rules", "flush chain inet patchbay " + chain, trace.Dropped, trace.Dropped, false},
		{"no base rules", "flush chain inet patchbay policy_ingress", trace.Accepted, trace.Accepted, false},
		{"no element", "delete element inet patchbay policy_ingress4 { 10.1.1.2 }", trace.Accepted, trace.Accepted, false},
		{"another hook", "delete chain inet patchbay policy_ingress; add chain inet patchbay policy_ingress { type filter hook output priority 3; }", trace.Accepted, trace.Accepted, false},
		{"a policy of the chain", "flush chain inet patchbay policy_egress; chain inet patchbay policy_egress { policy drop; }", trace.Dropped, trace.Dropped, false},
		{"dormant", "table inet patchbay { flags dormant; }", trace.Accepted, trace.Accepted, false},
		{"no table", "delete table inet patchbay", trace.Accepted, trace.Accepted, false},
		{"what is not understood", `insert rule inet patchbay policy_egress iifname "v0" drop`, trace.Accepted | trace.Dropped, trace.Dropped, true},
		{"a condition that is not", `insert rule inet patchbay policy_egress iifname "v0" ip daddr 10.9.9.9 drop`, trace.Accepted, trace.Dropped, false},
	} {
		p.enforcer.Forget()
		p.load(onB + fromA80 + "]}")
		p.nft(strings.ReplaceAll(c.change, "; ", "\n"))
		for port, want := range map[uint16]trace.Fate{80: c.open80, 81: c.open81} {
			to := netip.AddrPortFrom(netip.MustParseAddr("10.1.1.2"), port)
			list := p.judge(to)
			got := FateOf(list)
			foreign := slices.ContainsFunc(list, func(j Judgement) bool { return j.Reasons[0].Foreign })
			if got != want || port == 81 && foreign != c.foreign {
				t.Errorf("%s: Judge says %d of port %d, want %d: %+v", c.name, got, port, want, list)
			}
			if want == trace.Accepted|trace.Dropped {
				continue
			}
			if open := p.answers(p.client, to.String(), want == trace.Accepted); open != (want == trace.Accepted) {
				t.Errorf("%s: port %d answers: %v, and Judge says %d", c.name, port, open, got)
			}
		}
		p.nft("table inet patchbay\ndelete table inet patchbay")
	}
}

// judge judges a packet of the client.
func (p *pair) judge(to netip.AddrPort) (list []Judgement) {
	must(p.t, p.node.Do(func() error {
		return Look(p.enforcer.fw, func(v *View) (err error) {
			list, err = v.Judge(Packet{From: netip.MustParseAddr("10.1.1.1"), To: to.Addr(), Protocol: policy.TCP, Port: to.Port()})
			return err
		})
	}))
	return list
}
