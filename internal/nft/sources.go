// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// A pod to which network policies apply sends only from its own addresses. The chains check this where its
// packets enter the host. That is before connection tracking, so they check established connections too. Our tables have
// these objects from the first such pod on:
//
//	table inet patchbay     pods with a link of their own (ptp)
//	    set policy_ownsource { "veth0a1b2c3d" }
//	    set policy_source4, policy_source6 { "veth0a1b2c3d" . 10.1.0.5 }
//	    chain policy_sources        hook prerouting: own sources pass
//	    chain policy_sources_other  what comes from such a link, and is not in these sets
//	    counter policy_forged
//	    set policy_sources_in4, policy_sources_in6 { "veth0a1b2c3d" . 10.1.0.5 }   typeof iifname . @th,192,32
//	    set policy_sources_routers  links from which packets of networks behind a pod came in the last day
//	    chain policy_sources_errors errors of ICMP from such a link
//	    chain policy_sources_tail   drops, after policy_sources_tell has told it (tell.go)
//	    chain policy_sources_tell, set policy_sources_told4, …6, policy_sources_rate, policy_sources_quiet, limit policy_sources_limit
//	table bridge patchbay   pods at a port of a bridge
//	    set policy_port, policy_port4, policy_port6
//	    set policy_portin, policy_portout   ports of pods that a policy isolates, or that an ADD closed
//	    set policy_sources_portin4, policy_sources_portin6   port . destination in an error
//	    chain policy_sources, policy_sources_errors, policy_sources_other
//	    chain policy_sources_forward        hook forward: to a port in policy_portin
//	    chain policy_sources_to             packets to such a port: only those that the table inet judges
//
// A packet from a pod meets one lookup, any other packet two. The host may have a route to further
// addresses behind a pod's own link, as to the networks that a pod routes. The kernel looks up this route (fib) only
// if the source is not in the sets. For most pods, that happens only with forged packets. A bridge has no routes, so
// its ports send only from the addresses in the sets.
//
// An error of ICMP belongs to the connection of the packet in it, so policies let it pass. A pod may send errors only
// about packets that were sent to it: otherwise it could end connections of other pods and of the node, or lower their
// MTU, whatever the policies say. The sets policy_sources_in4 and 6 have the pod's addresses once more, because nft
// loads a rule with raw bytes of a packet only if its set has them, too. A pod that routes other networks sends errors
// about packets to these. A packet from such a network shows that the host routes the network to the pod.
//
// An element belongs to an attachment, and has its comment. Package internal/policy/enforce adds and removes it. Only the kernel
// adds elements to policy_sources_routers.
const (
	SetSource4 = "policy_source4" // link . address
	SetSource6 = "policy_source6" //

	SetPort  = "policy_port"  // table bridge: port whose sources are checked
	SetPort4 = "policy_port4" // table bridge: port . address
	SetPort6 = "policy_port6" //

	SetPortIn  = "policy_portin"  // table bridge: port of a pod that is not open for ingress
	SetPortOut = "policy_portout" // table bridge: port of a pod that is not open for egress

	// An earlier release does not touch objects whose names begin with this.
	setInside4  = "policy_sources_in4"     // link . destination of the packet in an error
	setInside6  = "policy_sources_in6"     //
	setRouters  = "policy_sources_routers" // link
	setPortIns4 = "policy_sources_portin4" // table bridge: port . destination of the packet in an error
	setPortIns6 = "policy_sources_portin6" //

	setForged4    = "policy_sources_told4" // link . source . destination that was told lately
	setForged6    = "policy_sources_told6" //
	setForgedRate = "policy_sources_rate"  // link, with its limit
	setForgedOnce = "policy_sources_quiet" // link with a line in the last ten seconds

	CountForged = "policy_forged" // packets of a pod's own link from an address that is not the pod's

	chainSources      = "policy_sources"
	chainSourcesOther = "policy_sources_other" // later in the alphabet, so the chains that call it are deleted first
	chainSourcesError = "policy_sources_errors"
	chainSourcesOut   = "policy_sources_forward"
	chainSourcesTo    = "policy_sources_to"
	chainSourcesTell  = "policy_sources_tell"

	// ChainForged drops packets from an address that is not the pod's, and has them told.
	ChainForged = "policy_sources_tail"

	// Frames of a port have their source MAC checked before.
	prioSources = -299
)

// OfSources reports whether an object of our tables belongs to the check of sources.
func OfSources(name string) bool {
	return name == SetOwnSource || name == CountForged || strings.HasPrefix(name, chainSources) || slices.Contains(SourceSets(), name)
}

// SourceSets returns the names of the sets of both tables with elements of attachments.
func SourceSets() []string {
	return append(linkSets(), portSets()...)
}

func linkSets() []string {
	return []string{SetOwnSource, SetSource4, SetSource6, setInside4, setInside6}
}

func portSets() []string {
	return []string{SetPort, SetPort4, SetPort6, SetPortIn, SetPortOut, setPortIns4, setPortIns6}
}

// Sources returns the elements by which a pod may send only from these addresses: behind a link of its
// own, at a port of a bridge, or both. Either may be "". CheckSources makes the objects that they need.
func Sources(link, port string, addrs []netip.Addr, comment string) (list []Element) {
	add := func(at, all, v4, v6, inside4, inside6 string) {
		if at == "" {
			return
		}
		for _, a := range addrs {
			key := append(IfName(at), Addr(a)...)
			list = append(list, Element{Set: of(a, v4, v6), Key: key, Comment: comment}, Element{Set: of(a, inside4, inside6), Key: key, Comment: comment})
		}
		list = append(list, Element{Set: all, Key: IfName(at), Comment: comment})
	}
	add(link, SetOwnSource, SetSource4, SetSource6, setInside4, setInside6)
	add(port, SetPort, SetPort4, SetPort6, setPortIns4, setPortIns6)
	return list
}

// PortClosed returns the element by which a port receives (side 0) or sends (1) only packets that the table inet
// judges.
func PortClosed(side int, port, comment string) Element {
	return Element{Set: [2]string{SetPortIn, SetPortOut}[side], Key: IfName(port), Comment: comment}
}

// sourceChains returns the chains of a table, in the order in which they can be made (sourcerules.go).
func sourceChains(family nftables.TableFamily) []chainSpec {
	if family == nftables.TableFamilyBridge {
		return portChains()
	}
	router := staticRule{"", rule(match{loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(setRouters, false)}, verdict(expr.VerdictReturn))}
	return []chainSpec{
		{name: chainSourcesTell, keep: true}, {name: ChainForged, rules: forgedTail()},
		{name: chainSourcesError, rules: insideErrors(family, setInside4, setInside6, router)}, {name: chainSourcesOther, rules: linkOther()},
		atPrerouting(append(errorsFrom(family, SetOwnSource), ownSources(family, SetOwnSource, SetSource4, SetSource6)...)),
	}
}

func atPrerouting(rules []staticRule) chainSpec {
	return chainSpec{name: chainSources, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioSources, rules: rules}
}

// withSources adds the check of sources to the layout, if the table has its sets.
func (l layout) withSources(have []string) layout {
	sets := sourceSetsOf(l.family)
	if !slices.ContainsFunc(have, func(name string) bool { return name != SetOwnSource && slices.Contains(sets, name) }) {
		return l
	}
	l.sets = append(l.sets[:len(l.sets):len(l.sets)], sets...)
	l.chains = append(l.chains[:len(l.chains):len(l.chains)], sourceChains(l.family)...)
	return l
}

func sourceSetsOf(family nftables.TableFamily) []string {
	if family == nftables.TableFamilyBridge {
		return portSets()
	}
	return append(linkSets(), setRouters, setForged4, setForged6, setForgedRate, setForgedOnce)
}

// CheckSources returns the work that makes the chains and sets of the check of sources in one table, if
// they are missing. With rules, it also compares the rules.
func CheckSources(family nftables.TableFamily, rules bool) Extra {
	return &sourceCheck{family: family, rules: rules}
}

type sourceCheck struct {
	family nftables.TableFamily
	rules  bool
	makes  bool // the last plan made something
}

// String names the table.
func (x *sourceCheck) String() string {
	return "check the sources of pods in table " + FamilyName(x.family) + " " + TableName
}

// Needs reports whether the table must exist. Elements say so for the table bridge.
func (x *sourceCheck) Needs() bool { return x.family == nftables.TableFamilyINet }

// Light reports whether all chains and sets existed.
func (x *sourceCheck) Light() bool { return !x.makes }

// Merge joins two checks of one table.
func (x *sourceCheck) Merge(next Extra) (Extra, bool) {
	y, ok := next.(*sourceCheck)
	if !ok || x.family != y.family {
		return x, false
	}
	return &sourceCheck{family: x.family, rules: x.rules || y.rules}, true
}

// Plan finds out which parts are missing; in most ADDs none is.
func (x *sourceCheck) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	sets, chains := sourceSetsOf(x.family), sourceChains(x.family)
	var what []query
	for _, name := range sets {
		s, _ := specOf(name)
		what = append(what, s.query())
	}
	for _, ch := range chains {
		what = append(what, Ref{x.family, TableName, ch.name}.query())
	}
	there := make([]bool, len(what))
	if err := c.ask(what, func(i int, _ []netlink.Message) error { there[i] = true; return nil }); err != nil {
		return nil, err
	}
	missing := kept(sets, func(i int) bool { return !there[i] })
	wrong := kept(asMissing(chains), func(i int) bool { return !there[len(sets)+i] })
	if x.rules {
		var err error
		if wrong, err = c.wrongChains(x.family, chains); err != nil {
			return nil, err
		}
	}
	if x.makes = len(missing)+len(wrong) > 0; !x.makes {
		return nil, nil
	}
	return func(enc *nftables.Conn) error { return makeSources(enc, layoutOf(x.family), missing, wrong) }, nil
}

func asMissing(chains []chainSpec) (list []wrongChain) {
	for _, ch := range chains {
		list = append(list, wrongChain{ch, false})
	}
	return list
}

// makeSources queues the missing sets, and the chains that are missing or wrong.
func makeSources(enc *nftables.Conn, l layout, missing []string, wrong []wrongChain) error {
	for _, name := range missing {
		if err := enc.AddSet(l.spec(name).set(), nil); err != nil {
			return err
		}
	}
	addForged(enc, l)
	for _, ch := range wrong {
		ch.replace(enc, l.table())
	}
	return nil
}

// addForged queues the counter and the limit. The kernel keeps those that exist.
func addForged(enc *nftables.Conn, l layout) {
	if l.family == nftables.TableFamilyINet {
		addLimit(enc, l.table())
		enc.AddObj(&nftables.CounterObj{Table: l.table(), Name: CountForged})
	}
}
