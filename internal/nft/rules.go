// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// These are the chains. A base chain is named after its hook.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainForward     = "forward"
	chainRaw         = "raw"
	chainHostPorts   = "hostports"
	chainPublished   = "published"
	chainHairpin     = "hairpin"
	chainConditional = "conditional"
	chainIsolated    = "isolated"
	chainInternal    = "internal"
	chainSpanned     = "spanned"
	chainDivided     = "divided"
	chainMasquerade  = "masquerading"
	chainAdmin       = "admin" // rules of the operator; created empty, never flushed
)

// These are the priorities of the base chains. Our rules for published ports come after those
// of kube-proxy and Docker (dstnat, -100). So a Service with the same port wins, as with the
// reference plugins since CVE-2019-9946. Masquerade comes after the source NAT of every other
// program (srcnat, 100), so an operator's rule wins.
const (
	prioPublish    = -95
	prioMasquerade = 105
	prioForward    = 0
	prioSpoof      = -300
	prioRaw        = -300 // before connection tracking
)

// chainSpec describes a static chain. A chain without hook is only the target of jumps.
type chainSpec struct {
	name  string
	typ   nftables.ChainType
	hook  *nftables.ChainHook
	prio  int
	rules []staticRule
	// keep means that the chain is created once and not changed afterwards, because its rules are
	// not ours.
	keep bool
}

// staticRule is a rule with the comment that `nft list` shows.
type staticRule struct {
	comment string
	exprs   match
}

// inetChains returns the chains of `inet patchbay`. Targets of jumps come first, because a
// rule can only jump to a chain that exists.
func inetChains() []chainSpec {
	guard := []staticRule{{"not by route_localnet from outside", loopbackGuard(false)}, {"nor as the host itself", loopbackGuard(true)}}
	toPorts := []staticRule{{"", rule(toLocal(), jump(chainHostPorts))}}
	// Packets of the host itself get here only if the chain output has not changed their destination.
	arrived := append([]staticRule{{"only from this host", rule(inLoopback(false), verdict(expr.VerdictReturn))}}, toPorts...)
	return []chainSpec{
		{name: chainAdmin, keep: true},
		{name: chainConditional, keep: true},
		{name: chainSameNet, keep: true},
		{name: chainNeighbours, keep: true},
		{name: chainClosed, keep: true},
		{name: chainSpan, keep: true},
		{name: chainAnyPort, keep: true},
		{name: chainHostPorts, rules: hostPortRules()},
		{name: chainMasquerade, rules: masqueradeRules()},
		{name: chainHairpin, rules: hairpinRules()},
		{name: chainPublished, rules: publishedRules()},
		{name: chainIsolated, rules: isolatedRules()},
		{name: chainInternal, rules: internalRules()},
		{name: chainSpanned, rules: spannedRules()},
		{name: chainDivided, rules: dividedRules()},
		{name: chainRaw, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioRaw, rules: guard},
		{name: chainPrerouting, typ: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, prio: prioPublish, rules: arrived},
		{name: chainOutput, typ: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput, prio: prioPublish, rules: toPorts},
		{name: chainPostrouting, typ: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, prio: prioMasquerade, rules: postroutingRules()},
		{name: chainForward, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, prio: prioForward, rules: forwardRules()},
	}
}

// hostPortRules returns rules in this order: networks with conditions come before networks
// without, and mappings with a host address come before mappings for all addresses.
func hostPortRules() []staticRule {
	return []staticRule{
		{"the kernel drops the answers", rule(toLoopback6(), verdict(expr.VerdictReturn))},
		{"networks with conditions", jump(chainConditional)},
		{"", dnatBy(false, true, SetHostPorts4)},
		{"", dnatBy(false, false, SetPorts4)},
		{"", dnatBy(true, true, SetHostPorts6)},
		{"", dnatBy(true, false, SetPorts6)},
	}
}

// postroutingRules returns the rules that the first packet of each connection through the node
// passes. So rules that most packets do not need are in other chains.
func postroutingRules() []staticRule {
	return []staticRule{
		{"", rule(published(), jump(chainPublished))},
		{"", rule(addrIn(false, true, SetMasqueraded4), jump(chainMasquerade))},
		{"", rule(addrIn(true, true, SetMasqueraded6), jump(chainMasquerade))},
	}
}

// masqueradeRules returns the rules for packets of masqueraded containers. The first rules accept
// packets that keep the container's address. The next rule gives packets an egress address, and the
// next one gives them the host's usual address. The rules of IPv4 come first, so only packets of IPv6
// pass rules of the other family.
func masqueradeRules() []staticRule {
	accept := verdict(expr.VerdictAccept)
	return []staticRule{
		{"within a network", jump(chainSameNet)},
		{"", rule(multicast(false, expr.CmpOpEq), accept)},
		{"", snatBy(false, SetEgress4)},
		{"", rule(family(false), jump(chainAnyPort))},
		{"", rule(family(false), masquerade())},
		{"", rule(multicast(true, expr.CmpOpEq), accept)},
		{"", snatBy(true, SetEgress6)},
		{"", jump(chainAnyPort)},
		{"", masquerade()},
	}
}

// forwardRules returns the rules that drop forwarded packets. A drop is final, even if another
// table accepts the packet. Every packet between containers passes these rules, even in an established
// connection. So on a node without closed bridges they contain no lookup (ondemand.go).
func forwardRules() []staticRule {
	return []staticRule{
		{"overrides of the operator", jump(chainAdmin)},
		{"isolated and internal bridges", jump(chainClosed)},
	}
}

// isolatedRules returns the rules for packets between isolated bridges. The facts Apart and
// SameBridge exist only beside Isolate.
func isolatedRules() []staticRule {
	ret, drop := verdict(expr.VerdictReturn), verdict(expr.VerdictDrop)
	return []staticRule{
		{"", rule(betweenIn(SetApart), drop)},
		{"", rule(betweenIn(SetInside), ret)},
		{"", rule(betweenIn(SetBridgeOK), ret)},
		{"", drop},
	}
}

// internalRules returns the rules for packets from or to an internal bridge. They forward only within a
// span (spans.go).
func internalRules() []staticRule {
	return []staticRule{
		{"", rule(betweenIn(SetInside), verdict(expr.VerdictReturn))},
		{"within a network of several hosts", jump(chainSpan)},
		{"", verdict(expr.VerdictDrop)},
	}
}

// betweenIn matches a packet whose two interfaces are in a set.
func betweenIn(set string) match {
	return match{loadMeta(expr.MetaKeyIIFNAME, reg1), loadMeta(expr.MetaKeyOIFNAME, unix.NFT_REG_2), inSet(set, false)}
}

// bridgeChains returns the chains of `bridge patchbay`. A frame with the right address meets one
// lookup.
func bridgeChains() []chainSpec {
	iif := loadMeta(expr.MetaKeyIIFNAME, reg1)
	source := &expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6}
	return []chainSpec{{
		name: chainPrerouting, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioSpoof,
		rules: []staticRule{
			{"", rule(match{iif, source, inSet(SetSpoofAllowed, false)}, verdict(expr.VerdictAccept))},
			{"source MAC is not the container's", rule(match{iif, inSet(SetSpoofChecked, false)}, verdict(expr.VerdictDrop))},
		},
	}}
}

// layout describes one of our tables.
type layout struct {
	family nftables.TableFamily
	sets   []string
	chains []chainSpec
}

func layoutOf(family nftables.TableFamily) layout {
	if family == nftables.TableFamilyBridge {
		return layout{family, bridgeSets(), bridgeChains()}
	}
	return layout{family, inetSets(), inetChains()}
}

func (l layout) table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: l.family}
}

// spec returns the specification of one of the table's own sets.
func (l layout) spec(name string) setSpec {
	if name == SetSchema {
		return schemaSpec(l.family)
	}
	s, _ := specOf(name)
	return s
}

// create queues a complete new table. If two processes do this at once, the second transaction
// fails as a whole (NLM_F_EXCL). So no rule exists twice.
func (l layout) create(enc *nftables.Conn, schema uint16) error {
	enc.CreateTable(l.table())
	return l.fill(enc, nil, nil, schema)
}

// upgrade queues the changes from schema old to ours. upgrade creates what is missing and
// replaces the static rules. upgrade keeps the elements, and the chains whose rules are not
// ours.
func (l layout) upgrade(enc *nftables.Conn, have []string, old, schema uint16) error {
	return l.fill(enc, have, &old, schema)
}

// fill queues the sets that are missing and the chains. fill skips existing sets: nft -f
// writes their type differently, and the kernel refuses to create an existing set with a
// different type.
func (l layout) fill(enc *nftables.Conn, have []string, old *uint16, schema uint16) error {
	for _, s := range l.sets {
		if slices.Contains(have, s) {
			continue
		}
		if err := enc.AddSet(l.spec(s).set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", s, err)
		}
	}
	for _, c := range l.chains {
		c.add(enc, l.table(), old != nil)
	}
	set := schemaSpec(l.family).set()
	if old != nil {
		if slices.ContainsFunc(have, ofRanges) {
			dropRanges(enc, have)
		}
		if err := enc.SetDeleteElements(set, []nftables.SetElement{{Key: number(0), Val: number(*old)}}); err != nil {
			return fmt.Errorf("remove schema %d: %w", *old, err)
		}
	}
	return enc.SetAddElements(set, []nftables.SetElement{{Key: number(0), Val: number(schema)}})
}

// add queues a chain and its rules.
func (c chainSpec) add(enc *nftables.Conn, t *nftables.Table, flush bool) {
	chain := &nftables.Chain{Name: c.name, Table: t}
	if c.hook != nil {
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Hooknum, chain.Priority = c.typ, c.hook, nftables.ChainPriorityRef(nftables.ChainPriority(c.prio))
		chain.Policy = &accept
	}
	enc.AddChain(chain)
	if flush && !c.keep {
		enc.FlushChain(chain)
	}
	for _, r := range c.rules {
		enc.AddRule(r.rule(t, chain))
	}
}

func (r staticRule) rule(t *nftables.Table, c *nftables.Chain) *nftables.Rule {
	return &nftables.Rule{Table: t, Chain: c, Exprs: r.exprs, UserData: RuleComment(r.comment)}
}

// RuleComment returns the user data of a rule with a comment, cut to MaxComment bytes. It returns
// nil if there is no comment.
func RuleComment(comment string) []byte {
	if comment == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, CleanComment(comment))
}

// number encodes a key or value of the schema map.
func number(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// native encodes a number in the host's byte order, as the kernel stores marks and flags.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// publishedRules returns rules that match published ports with snat. Each protocol has its own
// rule, because nft (1.0.6) can read `ct original proto-dst` only after a match of the
// protocol:
//
//	meta l4proto tcp ip daddr . meta l4proto . ct original proto-dst @snat4 goto hairpin
func publishedRules() (rules []staticRule) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			rules = append(rules, staticRule{"", rule(publishedIn(v6, proto), goTo(chainHairpin))})
		}
	}
	return rules
}

func publishedIn(v6 bool, proto byte) match {
	set, word := SetSNAT4, 1
	if v6 {
		set, word = SetSNAT6, 4
	}
	return rule(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{proto}), family(v6), match{
		loadAddr(v6, false, reg1),
		loadMeta(expr.MetaKeyL4PROTO, reg32(word)),
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg32(word + 1), Direction: 0}, // IP_CT_DIR_ORIGINAL
		inSet(set, false),
	})
}

// hairpinRules returns the rules that masquerade traffic to a published port. Traffic that
// matches none of them keeps its source address.
func hairpinRules() []staticRule {
	return []staticRule{
		{"from its own network, itself too", jump(chainNeighbours)},
		{"", rule(inLoopback(true), masquerade())},
	}
}

// toLoopback6 matches packets to ::1. If such a request were sent to a container and
// masqueraded, its answer would get lost: Linux routes ::1 only on the loopback device, and
// IPv6 has no route_localnet. With this match a client is refused at once and tries 127.0.0.1,
// or reaches a server on the host.
func toLoopback6() match {
	return rule(family(true), MatchPrefix(netip.PrefixFrom(netip.IPv6Loopback(), 128), false, expr.CmpOpEq))
}

// inLoopback matches packets with a source or destination in 127.0.0.0/8.
func inLoopback(source bool) match {
	lo := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	return rule(family(false), MatchPrefix(lo, source, expr.CmpOpEq))
}

// loopbackGuard drops packets from guarded interfaces with a source or destination in 127.0.0.0/8. loopbackGuard runs
// before connection tracking, which restores the address 127.0.0.1 in answers.
func loopbackGuard(source bool) match {
	return rule(inLoopback(source), match{
		loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(SetLocalNet, false),
	}, verdict(expr.VerdictDrop))
}
