// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Every rule of the network policies that drops ends with a goto to a tail: a chain that asks whether this flow was told
// in the last ten seconds, and drops. If it was not, a chain that the agent fills tells it to a group of NFLOG. Its limits
// stand before a set grows, so a flood fills no set. A pod that was quiet for ten seconds is told without a limit: a
// flood at other pods does not hide it.
const (
	// LimitTold is the limit object for all lines of a node.
	LimitTold = "policy_sources_limit"

	nodeRate, nodeBurst = 100, 100 // lines in a second, for all that are not quiet
	podRate, podBurst   = 10, 20   // lines in a second, for one of them

	toldFor   = 10 * time.Second // a flow, and a quiet pod
	rateFor   = time.Minute
	mostFlows = 2048
	mostPods  = 1024

	// snapLength has an IPv6 header and the first 24 bytes behind it.
	snapLength = 64
)

// Teller tells about the packets that one kind of rules drops.
type Teller struct {
	flow, whom       func(v6 bool) match
	told, rate, once [2]string // sets by v6: flows, and what each limit is for
	late             bool      // nft writes the family only where flow begins
}

// PodTeller tells about packets that a policy drops: for side 0 by the pod to which they are sent, for side 1 by the pod
// that sends them. A pod cannot forge either address.
func PodTeller(side int) Teller {
	sets := TellSets()[side]
	return Teller{
		flow: func(v6 bool) match { return rule(addrs(v6), loadPort(2*words(v6))) },
		whom: func(v6 bool) match { return match{loadAddr(v6, side == 1, reg1)} },
		told: sets[0], rate: sets[1], once: sets[2],
	}
}

// TellSets returns the names of the sets of both sides of pods, by family: flows that were told, pods with their limits,
// and pods with a line in the last ten seconds.
func TellSets() [2][3][2]string {
	return [2][3][2]string{
		{{"policy_toldin4", "policy_toldin6"}, {"policy_ratein4", "policy_ratein6"}, {"policy_quietin4", "policy_quietin6"}},
		{{"policy_toldout4", "policy_toldout6"}, {"policy_rateout4", "policy_rateout6"}, {"policy_quietout4", "policy_quietout6"}},
	}
}

// LearnedSet returns a set of TellSets or EndedSets for the library, or nil if the name is not one of theirs. The kernel writes their elements.
func LearnedSet(name string) *nftables.Set {
	for _, s := range append(tellSpecs(), endedSpecs()...) {
		if s.name == name {
			return s.set()
		}
	}
	return nil
}

// tellSpecs returns the sets of TellSets. They are not in setSpecs, because no element of theirs is an attachment's or a
// network's.
func tellSpecs() (list []setSpec) {
	for _, side := range TellSets() {
		for v6, addr := range []field{fieldIPv4, fieldIPv6} {
			list = append(list,
				tellSpec(side[0][v6], mostFlows, toldFor, addr, addr, fieldProto, fieldPort),
				tellSpec(side[1][v6], mostPods, rateFor, addr),
				tellSpec(side[2][v6], mostPods, toldFor, addr))
		}
	}
	return list
}

func tellSpec(name string, most uint32, keep time.Duration, key ...field) setSpec {
	return setSpec{name: name, family: nftables.TableFamilyINet, level: ofPolicy, key: key, learned: true, most: most, keep: keep}
}

// Untold returns a rule that jumps to the chain tell if the flow of a packet was not told lately. It does not match a
// later fragment, which has no port: such a packet is only counted.
func (t Teller) Untold(v6 bool, tell string) []expr.Any {
	return rule(family(v6), t.flow(v6), match{inSet(t.told[bit(v6)], true)}, jump(tell))
}

// Quiet returns the rule that tells without a limit, if nothing was told about this pod lately.
func (t Teller) Quiet(v6 bool, to Log) []expr.Any {
	once := t.once[bit(v6)]
	first, then := family(v6), match(nil)
	if t.late {
		first, then = then, first
	}
	return rule(first, t.whom(v6), match{inSet(once, true)}, then, t.mark(v6), t.whom(v6), match{add(once), to.expr()}, verdict(expr.VerdictReturn))
}

// Limited returns the rule that tells within the pod's limit and the node's.
func (t Teller) Limited(v6 bool, to Log) []expr.Any {
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: podRate, Unit: expr.LimitTimeSecond, Burst: podBurst}
	return rule(family(v6), t.whom(v6), match{
		&expr.Dynset{SrcRegKey: reg1, SetName: t.rate[bit(v6)], Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{limit}},
		&expr.Objref{Type: unix.NFT_OBJECT_LIMIT, Name: LimitTold + "\x00"},
	}, t.mark(v6), match{to.expr()})
}

// mark notes that a flow is told.
func (t Teller) mark(v6 bool) match { return rule(t.flow(v6), match{add(t.told[bit(v6)])}) }

func add(set string) *expr.Dynset {
	return &expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_ADD}
}

func bit(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Log is where packets are told: a group of NFLOG, and the prefix of each message.
type Log struct {
	Group  uint16
	Prefix string
}

func (l Log) expr() expr.Any {
	return &expr.Log{
		Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN, Group: l.Group, Snaplen: snapLength, Data: []byte(l.Prefix),
	}
}

// addLimit queues the limit object. The kernel keeps one that exists.
func addLimit(enc *nftables.Conn, t *nftables.Table) { enc.AddObj(tellLimit(t)) }

func tellLimit(t *nftables.Table) *nftables.NamedObj {
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: nodeRate, Unit: expr.LimitTimeSecond, Burst: nodeBurst}
	return &nftables.NamedObj{Table: t, Name: LimitTold, Type: nftables.ObjTypeLimit, Obj: limit}
}

// forgedTeller tells about packets that a pod sends from addresses of others, by the pod's link. They may have any
// address.
func forgedTeller() Teller {
	link := func(bool) match { return match{loadMeta(expr.MetaKeyIIFNAME, reg1)} }
	return Teller{
		flow: func(v6 bool) match {
			second := reg32(4 + words(v6))
			return match{loadMeta(expr.MetaKeyIIFNAME, reg1), loadAddr(v6, true, unix.NFT_REG_2), loadAddr(v6, false, second)}
		},
		whom: link, late: true,
		told: [2]string{setForged4, setForged6}, rate: [2]string{setForgedRate, setForgedRate}, once: [2]string{setForgedOnce, setForgedOnce},
	}
}

// forgedTail returns the rules at the end of the check of sources.
func forgedTail() []staticRule {
	t := forgedTeller()
	return []staticRule{
		{"", t.Untold(false, chainSourcesTell)},
		{"", t.Untold(true, chainSourcesTell)},
		{"", verdict(expr.VerdictDrop)},
	}
}

// PrefixForged is the prefix of messages about packets from addresses that are not the pod's.
const PrefixForged = "patchbay egress forged"

// TellForged returns the work that tells such packets to a group of NFLOG. With group 0 they are only counted. CheckSources
// must be queued before it.
func TellForged(group uint16) Extra { return forgedTelling{group} }

type forgedTelling struct{ group uint16 }

// String describes the work in errors.
func (x forgedTelling) String() string {
	return "tell packets that pods send from addresses of others to a group of NFLOG"
}

// Plan compares the rules. If the chain is missing, CheckSources before it in the queue makes it.
func (x forgedTelling) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	wrong, err := c.wrongChains(nftables.TableFamilyINet, []chainSpec{{name: chainSourcesTell, rules: x.rules()}})
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	return func(enc *nftables.Conn) error {
		wrong[0].replace(enc, layoutOf(nftables.TableFamilyINet).table())
		return nil
	}, nil
}

func (x forgedTelling) rules() (rules []staticRule) {
	if x.group == 0 {
		return nil
	}
	t, to := forgedTeller(), Log{x.group, PrefixForged}
	for _, v6 := range []bool{false, true} {
		rules = append(rules, staticRule{"", t.Quiet(v6, to)}, staticRule{"", t.Limited(v6, to)})
	}
	return rules
}
