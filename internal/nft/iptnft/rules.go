// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

const reg = unix.NFT_REG_1

// addChain queues a chain. An existing chain is kept.
func (f filter) addChain(name string) step {
	return func(enc *nftables.Conn) error {
		enc.AddChain(&nftables.Chain{Name: name, Table: f.table})
		return nil
	}
}

// top queues a rule at the start of a chain.
func (f filter) top(ch chain, text string, exprs []expr.Any) step {
	return func(enc *nftables.Conn) error {
		enc.InsertRule(f.rule(ch.name, 0, text, exprs))
		return nil
	}
}

// last queues a rule at the end of a chain. If the chain ends with a rule that returns
// everything, last puts the new rule before it.
func (f filter) last(ch chain, text string, exprs []expr.Any) step {
	return func(enc *nftables.Conn) error {
		if at := ch.end(); at != 0 {
			enc.InsertRule(f.rule(ch.name, at, text, exprs))
		} else {
			enc.AddRule(f.rule(ch.name, 0, text, exprs))
		}
		return nil
	}
}

func (f filter) rule(chainName string, at uint64, text string, exprs []expr.Any) *nftables.Rule {
	return &nftables.Rule{
		Table: f.table, Chain: &nftables.Chain{Name: chainName, Table: f.table},
		Position: at, UserData: comment(text), Exprs: exprs,
	}
}

// acceptIn queues both rules of a source.
func (f filter) acceptIn(ch chain, s Source) []step {
	to := append(s.through(expr.MetaKeyOIFNAME), nft.MatchPrefix(s.Subnet, false, expr.CmpOpEq)...)
	if !s.Open {
		to = append(to, established())
	}
	to = append(to, accept()...)
	from := append(s.through(expr.MetaKeyIIFNAME), nft.MatchPrefix(s.Subnet, true, expr.CmpOpEq)...)
	from = append(from, accept()...)
	return []step{f.last(ch, s.comment(), to), f.last(ch, s.comment(), from)}
}

// deleteRules queues the deletion of rules of one chain.
func deleteRules(t *nftables.Table, chainName string, rules []nft.Rule) (todo []step) {
	for _, r := range rules {
		todo = append(todo, func(enc *nftables.Conn) error {
			return enc.DelRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chainName, Table: t}, Handle: r.Handle})
		})
	}
	return todo
}

// dropChain queues the deletion of the jumps to a chain, then of the chain.
func dropChain(t *nftables.Table, name string, from ...chain) (todo []step) {
	for _, f := range from {
		for _, r := range f.rules {
			if r.JumpsTo(name) {
				todo = append(todo, deleteRules(t, f.name, []nft.Rule{r})...)
			}
		}
	}
	return append(todo, func(enc *nftables.Conn) error {
		c := &nftables.Chain{Name: name, Table: t}
		enc.FlushChain(c)
		enc.DelChain(c)
		return nil
	})
}

// established returns the match `-m conntrack --ctstate RELATED,ESTABLISHED,DNAT`. It accepts
// answers and packets to published ports. The reference does not accept the first packet to a
// published port.
func established() expr.Any {
	info := xt.ConntrackMtinfo3{}
	info.MatchFlags = uint16(xt.ConntrackState)
	info.StateMask = 1<<1 | 1<<2 | 1<<7 // XT_CONNTRACK_STATE_BIT of IP_CT_ESTABLISHED and IP_CT_RELATED, XT_CONNTRACK_STATE_DNAT
	return &expr.Match{Name: "conntrack", Rev: 3, Info: &info}
}

func accept() []expr.Any { return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}} }

func jump(to string) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: to}}
}
