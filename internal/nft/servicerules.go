// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// These are the chains of the table of Services; docs/adr/0092 has the reasons. All hooks are of nat chains, which see the first
// packet of a connection alone. <f> is 4 or 6.
//
//	prerouting, output           go to services<f>
//	services<f>                  jumps to vip<f> for an address of a Service, and to nodeports<f> for one of the node
//	vip<f>, nodeports<f>         jump twice to what follows
//	[np]frontends<f>             translates, drops or refuses. A frontend of no Service returns: if the address is one of the node, it may
//	                             have node ports
//	[np]outside<f>               decides for others than the node and its pods, by what they see ([np]outsideview<f>)
//	[np]draw<f>_<n>              draws an endpoint of a class; [np]outsidedraw<f>_<n> does for others
//	ranges<f>                    drops sources that are not allowed
//	refuse                       a TCP reset, because the kernel sends few errors of ICMP
//	input, postrouting           remember where clients with affinity were sent (remember<f>), and masquerade (masquerading<f>)
//
// A transaction becomes visible between two lookups of a packet. If a frontend has moved from a class to a smaller one, the packet may
// find it in neither. Then it looks for it once more, before it is refused or dropped: a second transaction is never so fast.
//
// In input and postrouting, a translated packet has the address of its endpoint. Its frontend is in the connection's original tuple,
// so that nothing needs a mark.
const (
	prioServices      = -100 // dstnat, as kube-proxy
	prioServicesAfter = 100  // srcnat, before our masquerade

	chainRefuse = "refuse"
)

// draws is how often a rule draws a slot of a class, of which more than half have an endpoint, before the last rule draws among those
// that each member of the class has. So the least likely endpoint gets at least 98.4 % of its share.
const draws = 6

// chains returns the chains of the layout. Targets of jumps come first.
func (l ServiceLayout) chains() (list []chainSpec) {
	list = append(list, chainSpec{name: chainRefuse, rules: refuseRules()})
	for _, v6 := range []bool{false, true} {
		list = append(list, l.drawChains(v6)...)
		f := serviceFamily{l, v6, familyDigit(v6)}
		for _, c := range []struct {
			name  string
			rules []match
		}{
			{"ranges", f.ranges()},
			{"outsideview", f.translate("", "outsideone", setOutClass)}, {"outside", f.outside("")},
			{"npoutsideview", f.translate("np", "outsideone", setOutClass)}, {"npoutside", f.outside("np")},
			{"frontends", f.frontends("")}, {"vip", f.vip()}, {"npfrontends", f.frontends("np")}, {"nodeports", f.twice("npfrontends")},
			{"services", f.services()},
			{"remember", f.remember()}, {"fromnode", f.fromNode()}, {"npmasquerading", f.masqueradingPorts()}, {"masquerading", f.masquerading()},
		} {
			list = append(list, chainSpec{name: c.name + f.digit, rules: uncommented(c.rules)})
		}
	}
	return append(list, serviceHooks()...)
}

func uncommented(rules []match) (list []staticRule) {
	for _, r := range rules {
		list = append(list, staticRule{"", r})
	}
	return list
}

// serviceHooks returns the base chains.
func serviceHooks() []chainSpec {
	each := func(chain string) (rules []staticRule) {
		for _, v6 := range []bool{false, true} {
			rules = append(rules, staticRule{"", rule(family(v6), goTo(chain+familyDigit(v6)))})
		}
		return rules
	}
	translated := func(chain string) []staticRule { return uncommented([]match{rule(published(), jump(chain))}) }
	nat := nftables.ChainTypeNAT
	return []chainSpec{
		{name: "remember", rules: each("remember")},
		{name: "masquerading", rules: each("masquerading")},
		{name: chainPrerouting, typ: nat, hook: nftables.ChainHookPrerouting, prio: prioServices, rules: each("services")},
		{name: chainOutput, typ: nat, hook: nftables.ChainHookOutput, prio: prioServices, rules: each("services")},
		{name: "input", typ: nat, hook: nftables.ChainHookInput, prio: prioServicesAfter, rules: translated("remember")},
		{
			name: chainPostrouting, typ: nat, hook: nftables.ChainHookPostrouting, prio: prioServicesAfter,
			rules: append(translated("remember"), translated("masquerading")...),
		},
	}
}

func refuseRules() []staticRule {
	reset := match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	unreachable := match{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
	return uncommented([]match{rule(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_TCP}), reset), unreachable})
}

// drawChains returns a chain for each class of a family.
func (l ServiceLayout) drawChains(v6 bool) (list []chainSpec) {
	for _, kind := range []string{setMany, setOutMany, "np" + setMany, "np" + setOutMany} {
		for _, s := range l.of(kind, v6) {
			list = append(list, chainSpec{name: s.drawChain(), rules: uncommented(s.draws(v6))})
		}
	}
	return list
}

// drawChain returns the chain that draws from a map, or for a set of a class from the map of the class: "npdraw4_8".
func (s setSpec) drawChain() string {
	return strings.NewReplacer(setMany, "draw", setClass, "draw").Replace(s.name)
}

// draws returns the rules that draw. The last one looks only at slots that each frontend of the class has.
func (s setSpec) draws(v6 bool) (rules []match) {
	class := uint32(s.length)
	if class > 2 {
		for range draws {
			rules = append(rules, s.draw(v6, class))
		}
		class = class/2 + 1
	}
	return append(rules, s.draw(v6, class))
}

func (s setSpec) draw(v6 bool, among uint32) match {
	withAddr := s.key[0] != fieldProto
	slot := 2
	if withAddr {
		slot += words(v6)
	}
	number := match{&expr.Numgen{Register: reg32(slot), Modulus: among, Type: unix.NFT_NG_RANDOM}}
	return rule(endOf(v6, withAddr), number, dnatFrom(v6, s.name))
}

// endOf loads a frontend, from register 1 on. nft tests the family before it looks at an address.
func endOf(v6, withAddr bool) match {
	if withAddr {
		return rule(family(v6), loadEnd(v6, true))
	}
	return loadEnd(v6, false)
}

// serviceFamily makes the rules of one family.
type serviceFamily struct {
	ServiceLayout
	v6    bool
	digit string
}

// at matches packets to a frontend in a set.
func (f serviceFamily) at(set string) match {
	return rule(endOf(f.v6, set[:2] != "np"), match{inSet(set, false)})
}

func (f serviceFamily) services() []match {
	to := func(set string) match { return addrIn(f.v6, false, set+f.digit) }
	return []match{
		rule(to("vips"), jump("vip"+f.digit)),
		rule(to("nodeaddrs"), jump("nodeports"+f.digit)),
		rule(to("cidrs"), toOthers(), verdict(expr.VerdictDrop)),
	}
}

// twice jumps to a chain, and again if it has returned.
func (f serviceFamily) twice(chain string) []match {
	return []match{jump(chain + f.digit), jump(chain + f.digit)}
}

// vip returns the rules for an address of a Service. What no frontend takes is refused at a cluster IP.
func (f serviceFamily) vip() []match {
	return append(f.twice("frontends"), rule(addrIn(f.v6, false, "clusterips"+f.digit), goTo(chainRefuse)))
}

// frontends returns the rules for frontends that have an address, or with np for node ports.
func (f serviceFamily) frontends(np string) (rules []match) {
	if np == "" {
		rules = append(rules, rule(f.at("ranged"+f.digit), jump("ranges"+f.digit)))
	}
	for _, s := range f.of(np+setSticky, f.v6) {
		at := f.at(s.name)
		if np != "" {
			at = rule(at, family(f.v6)) // nft needs it to name the addresses of remembered
		}
		rules = append(rules, rule(at, f.remembered()))
	}
	rules = append(rules, rule(f.at(np+"outside"+f.digit), jump(np+"outside"+f.digit)))
	rules = append(rules, f.translate(np, "one", setClass)...)
	if np == "" {
		rules = append(rules, rule(f.at("drop"+f.digit), verdict(expr.VerdictDrop)))
	}
	return append(rules, rule(f.at(np+"reject"+f.digit), goTo(chainRefuse)))
}

// translate returns the rules that choose an endpoint.
func (f serviceFamily) translate(np, one, class string) []match {
	rules := []match{rule(endOf(f.v6, np == ""), dnatFrom(f.v6, np+one+f.digit))}
	for _, s := range f.of(np+class, f.v6) {
		rules = append(rules, rule(f.at(s.name), jump(s.drawChain())))
	}
	return rules
}

// outside returns the rules for those who are neither this node nor one of its pods. The others return.
func (f serviceFamily) outside(np string) []match {
	back := verdict(expr.VerdictReturn)
	rules := []match{
		rule(addrIn(f.v6, true, "pods"+f.digit), back),
		rule(fromLocal(), back),
	}
	return append(append(rules, f.twice(np+"outsideview")...), verdict(expr.VerdictDrop))
}

// ranges returns the rules that let allowed sources return.
func (f serviceFamily) ranges() (rules []match) {
	n := words(f.v6) + 2
	for _, s := range f.of(setAllowed, f.v6) {
		size := 4 * words(f.v6)
		rules = append(rules, rule(endOf(f.v6, true), match{loadAddr(f.v6, true, reg32(n))}, masked(reg32(n), s.length, size),
			match{inSet(s.name, false)}, verdict(expr.VerdictReturn)))
	}
	return append(rules, verdict(expr.VerdictDrop))
}

// remembered sends a client where it was sent before.
func (f serviceFamily) remembered() match {
	n := words(f.v6)
	return rule(match{loadAddr(f.v6, true, reg1), loadAddr(f.v6, false, reg32(n))}, loadPort(2*n), dnatFrom(f.v6, setAffinity+f.digit))
}

// eachProtocol calls add with a match for each protocol: nft reads `ct original proto-dst` only after one.
func eachProtocol(add func(match)) {
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		add(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{proto}))
	}
}

// remember returns the rules that write where a client was sent.
func (f serviceFamily) remember() (rules []match) {
	eachProtocol(func(proto match) {
		for _, s := range f.of(setSticky, f.v6) {
			rules = append(rules, rule(proto, f.cameTo(s.name), f.write(s.length)))
		}
		for _, s := range f.of("np"+setSticky, f.v6) {
			rules = append(rules, rule(proto, f.cameToAddr("nodeaddrs"), f.cameTo(s.name), f.write(s.length)))
		}
	})
	return rules
}

// write remembers the endpoint of a connection. The reply tuple names it.
func (f serviceFamily) write(seconds int) match {
	n := words(f.v6)
	at := 2*n + 2
	data, port := reg32(at), reg32(at+n)
	return match{
		f.tuple(false, false, reg1), f.tuple(true, false, reg32(n)),
		loadMeta(expr.MetaKeyL4PROTO, reg32(2*n)), directed(unix.NFT_CT_PROTO_DST, false, reg32(2*n+1)),
		f.tuple(false, true, data), directed(unix.NFT_CT_PROTO_SRC, true, port),
		&expr.Dynset{SrcRegKey: reg1, SrcRegData: data, SetName: setAffinity + f.digit, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(seconds) * time.Second},
	}
}

// tuple loads an address of the connection's tuple.
func (f serviceFamily) tuple(dst, reply bool, reg uint32) *expr.Ct {
	const srcIP, dstIP, srcIP6, dstIP6 = 19, 20, 21, 22 // NFT_CT_SRC_IP of include/uapi/linux/netfilter/nf_tables.h
	key := map[[2]bool]uint32{{false, false}: srcIP, {false, true}: dstIP, {true, false}: srcIP6, {true, true}: dstIP6}[[2]bool{f.v6, dst}]
	return directed(key, reply, reg)
}

// cameTo matches connections that a client began to a frontend in a set.
func (f serviceFamily) cameTo(set string) match {
	n := words(f.v6)
	load := match{f.tuple(true, false, reg1)}
	if set[:2] == "np" {
		n, load = 0, nil
	}
	return rule(load, match{loadMeta(expr.MetaKeyL4PROTO, reg32(n)), directed(unix.NFT_CT_PROTO_DST, false, reg32(n+1)), inSet(set, false)})
}

// cameToAddr matches connections that a client began to an address in a set.
func (f serviceFamily) cameToAddr(set string) match {
	return match{f.tuple(true, false, reg1), inSet(set+f.digit, false)}
}

// masquerading returns the rules that hide the client.
func (f serviceFamily) masquerading() (rules []match) {
	rules = append(rules, rule(addrsIn(f.v6, "hairpin"+f.digit), hide()))
	eachProtocol(func(proto match) {
		rules = append(rules, rule(proto, f.cameTo("masq"+f.digit), hide()),
			rule(proto, f.cameTo("outside"+f.digit), jump("fromnode"+f.digit)))
	})
	return append(rules,
		rule(f.cameToAddr("clusterips"), family(f.v6), match{loadAddr(f.v6, true, reg1), inSet("keeping"+f.digit, true)}, hide()),
		rule(f.cameToAddr("nodeaddrs"), jump("npmasquerading"+f.digit)))
}

// masqueradingPorts does the same for node ports.
func (f serviceFamily) masqueradingPorts() (rules []match) {
	eachProtocol(func(proto match) {
		rules = append(rules, rule(proto, f.cameTo("npmasq"+f.digit), hide()),
			rule(proto, f.cameTo("npoutside"+f.digit), jump("fromnode"+f.digit)))
	})
	return rules
}

// fromNode hides what the node itself sent, whatever address it has taken.
func (f serviceFamily) fromNode() []match {
	return []match{
		rule(addrIn(f.v6, true, "pods"+f.digit), verdict(expr.VerdictReturn)),
		rule(fromLocal(), hide()),
	}
}

func hide() match { return match{&expr.Masq{FullyRandom: true}} }

// fromLocal matches packets whose source is an address of this host.
func fromLocal() match {
	return match{
		&expr.Fib{Register: reg1, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: native(unix.RTN_LOCAL)},
	}
}
