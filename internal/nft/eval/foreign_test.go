// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// nested returns an attribute with attributes inside, as the kernel sends it.
func nested(t *testing.T, typ uint16, data []byte) []byte {
	t.Helper()
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: typ, Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// gives returns the expression of a verdict.
func gives(t *testing.T, code int32, chain string) nft.Expr {
	verdict := nested(t, unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, uint32(code)))
	if chain != "" {
		verdict = append(verdict, nested(t, unix.NFTA_VERDICT_CHAIN, append([]byte(chain), 0))...)
	}
	return nft.Expr{Name: "immediate", Attrs: nft.Attrs{
		{Type: unix.NFTA_IMMEDIATE_DREG, Data: []byte{0, 0, 0, unix.NFT_REG_VERDICT}},
		{Type: unix.NFTA_IMMEDIATE_DATA, Data: nested(t, unix.NFTA_DATA_VERDICT, verdict)},
	}}
}

const drop, accept = 0, 1 // verdicts of netfilter

// linkIs returns a rule that compares the name of a link.
func linkIs(t *testing.T, key uint32, name string, verdict int32) []nft.Expr {
	return []nft.Expr{
		{Name: "meta", Attrs: nft.Attrs{{Type: unix.NFTA_META_KEY, Data: binary.BigEndian.AppendUint32(nil, key)}, {Type: unix.NFTA_META_DREG, Data: []byte{0, 0, 0, 1}}}},
		{Name: "cmp", Attrs: nft.Attrs{
			{Type: unix.NFTA_CMP_SREG, Data: []byte{0, 0, 0, 1}}, {Type: unix.NFTA_CMP_OP, Data: []byte{0, 0, 0, unix.NFT_CMP_EQ}},
			{Type: unix.NFTA_CMP_DATA, Data: nested(t, unix.NFTA_DATA_VALUE, append([]byte(name), 0))},
		}},
		gives(t, verdict, ""),
	}
}

// xtExpr returns an expression of iptables.
func xtExpr(expr, name string, info ...byte) nft.Expr {
	return nft.Expr{Name: expr, Attrs: nft.Attrs{{Type: unix.NFTA_MATCH_NAME, Data: append([]byte(name), 0)}, {Type: unix.NFTA_MATCH_INFO, Data: info}}}
}

// conntrack returns the match of iptables that compares states of connections.
func conntrack(flags, inverted, states uint16) nft.Expr {
	info := make([]byte, 160)
	for at, v := range map[int]uint16{146: flags, 148: inverted, 150: states} {
		binary.NativeEndian.PutUint16(info[at:], v)
	}
	return xtExpr("match", "conntrack", info...)
}

// made returns a table of chains whose rules are these expressions.
func made(chains map[string][]nft.Expr) *nft.Table {
	t := &nft.Table{Family: nftables.TableFamilyIPv4, Name: "filter", Rules: make(map[string][]nft.Rule)}
	for name, rules := range chains {
		drops := strings.HasPrefix(name, "passes")
		t.Chains = append(t.Chains, nft.Chain{Name: name, Base: true, Drops: drops})
		for _, e := range rules {
			if n := len(t.Rules[name]); n > 0 && !t.Rules[name][n-1].Has("immediate", "") {
				t.Rules[name][n-1].Exprs = append(t.Rules[name][n-1].Exprs, e)
				continue
			}
			t.Rules[name] = append(t.Rules[name], nft.Rule{Chain: name, Exprs: []nft.Expr{e}})
		}
	}
	return t
}

// TestMatches asks about matches of iptables, in the same way as TestConditionsOfNetworks.
func TestMatches(t *testing.T) {
	const byState, established, related, isNew, byAddress = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 1
	for _, c := range []struct {
		name    string
		match   nft.Expr
		out, in string
	}{
		{"comment", xtExpr("match", "comment"), all, all},
		{"tcp", xtExpr("match", "tcp"), few, few},
		{"udp", xtExpr("match", "udp"), few, few},
		{"multiport", xtExpr("match", "multiport"), few, few},
		{"icmp", xtExpr("match", "icmp"), few, few},
		{"icmp6", xtExpr("match", "icmp6"), few, few},
		{"mark", xtExpr("match", "mark"), few, few},
		{"connmark", xtExpr("match", "connmark"), few, few},
		{"limit", xtExpr("match", "limit"), few, few},
		{"addrtype", xtExpr("match", "addrtype"), some, some},
		{"answers", conntrack(byState, 0, established|related), none, answers},
		{"new", conntrack(byState, 0, isNew), begins, begins},
		{"new and established", conntrack(byState, 0, isNew|established), begins, begins},
		{"not new", conntrack(byState, byState, isNew), none, answers},
		{"not answers", conntrack(byState, byState, established|related), begins, begins},
		{"related", conntrack(byState, 0, related), states, states},
		{"by state and address", conntrack(byState|byAddress, 0, established), states, states},
		{"too short", xtExpr("match", "conntrack", 1, 2), states, states},
		{"target", xtExpr("target", "LOG"), all, all},
		{"notrack", nft.Expr{Name: "notrack"}, all, all},
		{"flow_offload", nft.Expr{Name: "flow_offload"}, all, all},
		{"unknown", nft.Expr{Name: "wormhole"}, some, some},
	} {
		table := made(map[string][]nft.Expr{
			"drops":      {c.match, gives(t, drop, "")},
			"accepts":    {c.match, gives(t, accept, ""), gives(t, drop, "")},
			"passes_out": append(linkIs(t, unix.NFT_META_OIFNAME, "br0", accept), c.match, gives(t, accept, "")),
			"passes_in":  append(linkIs(t, unix.NFT_META_IIFNAME, "br0", accept), c.match, gives(t, accept, "")),
			"stops_out":  append(linkIs(t, unix.NFT_META_OIFNAME, "br0", accept), c.match, gives(t, drop, "")),
			"stops_in":   append(linkIs(t, unix.NFT_META_IIFNAME, "br0", accept), c.match, gives(t, drop, "")),
		})
		leaves := four
		leaves.Out = true
		if out, in := kindOf(table, leaves), kindOf(table, four); out != c.out || in != c.in {
			t.Errorf("%s: matches of what leaves %q, comes in %q; want %q, %q", c.name, out, in, c.out, c.in)
		}
	}
}

// TestTargets asks about rules that decide without a verdict of nftables.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		name   string
		rule   []nft.Expr
		want   string
		passed string
	}{
		{"reject", []nft.Expr{xtExpr("target", "REJECT")}, "rule 1 of chain base", "No"},
		{"drop", []nft.Expr{xtExpr("target", "DROP")}, "rule 1 of chain base", "No"},
		{"some to a program", []nft.Expr{xtExpr("match", "tcp"), xtExpr("target", "NFQUEUE"), gives(t, drop, "")}, "-", "Yes"},
		{"expression queue", []nft.Expr{{Name: "queue"}}, "-", "Yes"},
	} {
		table := &nft.Table{Name: "filter", Rules: map[string][]nft.Rule{"base": {{Chain: "base", Exprs: c.rule}}}}
		chain := nft.Chain{Name: "base"}
		if got, passed := tell(DroppedBy(table, chain, four)), answerText(Passed(table, chain, four.Net, four.Link)); got != c.want || passed != c.passed {
			t.Errorf("%s: got %q, passed %s; want %q, %s", c.name, got, passed, c.want, c.passed)
		}
	}
	for _, e := range []nft.Expr{xtExpr("target", "NFQUEUE"), {Name: "queue"}} {
		table := &nft.Table{Name: "filter", Rules: map[string][]nft.Rule{"base": {{Exprs: []nft.Expr{e}}, {Exprs: []nft.Expr{gives(t, drop, "")}}}}}
		chain := nft.Chain{Name: "base"}
		if got, passed := tell(DroppedBy(table, chain, four)), Passed(table, chain, four.Net, four.Link); got != "rule 2 of chain base, maybe" || passed != Perhaps {
			t.Errorf("%s before a drop: got %q, passed %s", e.Name, got, answerText(passed))
		}
	}
}

// TestDepth asks about chains that call each other as deep as the kernel lets them, and deeper.
func TestDepth(t *testing.T) {
	for depth, want := range map[int]string{1: "rule 1 of chain 1", 16: "rule 1 of chain 16", 17: "-"} {
		table := &nft.Table{Name: "filter", Rules: make(map[string][]nft.Rule)}
		for i := range depth {
			table.Rules[fmt.Sprint(i)] = []nft.Rule{{Exprs: []nft.Expr{gives(t, unix.NFT_JUMP, fmt.Sprint(i+1))}}}
		}
		table.Rules[fmt.Sprint(depth)] = []nft.Rule{{Exprs: []nft.Expr{gives(t, drop, "")}}}
		if got := tell(DroppedBy(table, nft.Chain{Name: "0"}, four)); got != want {
			t.Errorf("depth %d: got %q, want %q", depth, got, want)
		}
	}
	loop := &nft.Table{Name: "filter", Rules: map[string][]nft.Rule{"0": {{Exprs: []nft.Expr{gives(t, unix.NFT_JUMP, "0")}}}}}
	if got := Passed(loop, nft.Chain{Name: "0"}, four.Net, ""); got != Yes {
		t.Errorf("a chain that calls itself passes: %s", answerText(got))
	}
}

// TestSetsNotRead asks about sets that cannot be read. In another program's table they make the answer uncertain. In
// our own table they do not matter, because doctor compares our sets with the records.
func TestSetsNotRead(t *testing.T) {
	lookup := func(to ...nft.Expr) []nft.Expr {
		payload := nft.Expr{Name: "payload", Attrs: nft.Attrs{
			{Type: unix.NFTA_PAYLOAD_BASE, Data: []byte{0, 0, 0, unix.NFT_PAYLOAD_NETWORK_HEADER}}, {Type: unix.NFTA_PAYLOAD_OFFSET, Data: []byte{0, 0, 0, 12}},
			{Type: unix.NFTA_PAYLOAD_LEN, Data: []byte{0, 0, 0, 4}}, {Type: unix.NFTA_PAYLOAD_DREG, Data: []byte{0, 0, 0, 1}},
		}}
		set := nft.Expr{Name: "lookup", Attrs: nft.Attrs{{Type: unix.NFTA_LOOKUP_SET, Data: []byte("s\x00")}, {Type: unix.NFTA_LOOKUP_SREG, Data: []byte{0, 0, 0, 1}}}}
		return append([]nft.Expr{payload, set}, to...)
	}
	for name, want := range map[string]string{"gone": "doubt: rule 1 of chain base", nft.TableName: "-"} {
		table := &nft.Table{Family: nftables.TableFamilyINet, Name: name, Rules: map[string][]nft.Rule{"base": {{Exprs: lookup(gives(t, drop, ""))}}}}
		if got := tell(DroppedBy(table, nft.Chain{Name: "base"}, four)); got != want {
			t.Errorf("table %s: got %q, want %q", name, got, want)
		}
		verdicts := lookup()
		verdicts[1].Attrs = append(verdicts[1].Attrs, nft.Attrs{{Type: unix.NFTA_LOOKUP_DREG, Data: []byte{0, 0, 0, unix.NFT_REG_VERDICT}}}...)
		table.Rules["base"] = []nft.Rule{{Exprs: verdicts}, {Exprs: []nft.Expr{gives(t, drop, "")}}}
		if got := tell(DroppedBy(table, nft.Chain{Name: "base"}, four)); got != "rule 2 of chain base, maybe" {
			t.Errorf("map of table %s: got %q", name, got)
		}
	}
}
