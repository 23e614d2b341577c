// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// TestJudgeOfChangedRules changes rules by hand. Judge agrees with real connections, and names a rule
// that no policy has.
func TestJudgeOfChangedRules(t *testing.T) {
	p := newPair(t, Options{})
	p.serve("[::]:80")
	p.serve("[::]:81")
	chain := kindPolicy[policy.Ingress] + hash("ingress shop/b")
	for _, c := range []struct {
		name, change string
		open80       eval.Fate
		open81       eval.Fate
		foreign      bool // of port 81
	}{
		{"as it was", "", eval.Accepted, eval.Dropped, false},
		{"a rule more", "insert rule inet patchbay " + chain + " tcp dport 81 accept", eval.Accepted, eval.Accepted, true},
		{"a rule with a comment", "insert rule inet patchbay " + chain + ` tcp dport 81 accept comment "mine"`, eval.Accepted, eval.Accepted, true},
		{"a rule that denies", "insert rule inet patchbay policy_egress ip saddr 10.1.1.0/24 tcp dport 80-81 reject", eval.Dropped, eval.Dropped, true},
		{"no rules", "flush chain inet patchbay " + chain, eval.Dropped, eval.Dropped, false},
		{"no base rules", "flush chain inet patchbay policy_ingress", eval.Accepted, eval.Accepted, false},
		{"no element", "delete element inet patchbay policy_ingress4 { 10.1.1.2 }", eval.Accepted, eval.Accepted, false},
		{"another hook", "delete chain inet patchbay policy_ingress; add chain inet patchbay policy_ingress { type filter hook output priority 3; }", eval.Accepted, eval.Accepted, false},
		{"a policy of the chain", "flush chain inet patchbay policy_egress; chain inet patchbay policy_egress { policy drop; }", eval.Dropped, eval.Dropped, false},
		{"dormant", "table inet patchbay { flags dormant; }", eval.Accepted, eval.Accepted, false},
		{"no table", "delete table inet patchbay", eval.Accepted, eval.Accepted, false},
		{"what is not understood", `insert rule inet patchbay policy_egress iifname "v0" drop`, eval.Accepted | eval.Dropped, eval.Dropped, true},
		{"a condition that is not", `insert rule inet patchbay policy_egress iifname "v0" ip daddr 10.9.9.9 drop`, eval.Accepted, eval.Dropped, false},
	} {
		p.enforcer.Forget()
		p.load(onB + fromA80 + "]}")
		p.nft(strings.ReplaceAll(c.change, "; ", "\n"))
		for port, want := range map[uint16]eval.Fate{80: c.open80, 81: c.open81} {
			to := netip.AddrPortFrom(netip.MustParseAddr("10.1.1.2"), port)
			list := p.judge(to)
			got := FateOf(list)
			foreign := slices.ContainsFunc(list, func(j Judgement) bool { return j.Reasons[0].Foreign })
			if got != want || port == 81 && foreign != c.foreign {
				t.Errorf("%s: Judge says %d of port %d, want %d: %+v", c.name, got, port, want, list)
			}
			if want == eval.Accepted|eval.Dropped {
				continue
			}
			if open := p.answers(p.client, to.String(), want == eval.Accepted); open != (want == eval.Accepted) {
				t.Errorf("%s: port %d answers: %v, and Judge says %d", c.name, port, open, got)
			}
		}
		p.nft("table inet patchbay\ndelete table inet patchbay")
	}
}

// judge judges a packet of the client.
func (p *pair) judge(to netip.AddrPort) (list []Judgement) {
	must(p.t, p.node.Do(func() error {
		return WithView(p.enforcer.fw, func(v *View) (err error) {
			list, err = v.Judge(Packet{From: netip.MustParseAddr("10.1.1.1"), To: to.Addr(), Protocol: l4.TCP, Port: to.Port()})
			return err
		})
	}))
	return list
}
