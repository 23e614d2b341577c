// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Other hosts trust the source address of packets that this host forwards to them, and isolate networks by
// it. So a container must not send them packets from an address of another network's container, or from an
// address that nobody has. While a mesh has networks whose hosts have bridges, our table has
//
//	chain links_<name>_from    hook prerouting: what comes from one of these bridges, and what has a source in
//	                           one of the networks and comes from any other bridge or veth but the uplinks
//	chain links_<name>_claims  the latter
//	chain links_<name>_to      drops it on its way to one of the networks, unless the host reaches the source
//	                           through the link from which it comes
//
// <name> is the name of the mesh. The hook comes after destination NAT; before Linux 5.19 only it can look up
// the way back through a link. Packets to the host, and packets that a bridge forwards to itself, pass.
// Another host's packets may come from an uplink although the way back is a tunnel. Like the chains of
// tunnels, these chains are not in the layout.
const linksPrefix = "links_"

// Links are the bridges of a host's containers in the networks of a mesh, the links to other hosts, and the
// ranges of the networks.
type Links struct {
	Mesh     string
	Bridges  []string
	Uplinks  []string
	Networks []netip.Prefix
}

// GuardLinks returns the work that checks the sources of containers. If there is no bridge, the work removes
// the chains.
func GuardLinks(l Links) Extra { return linkGuard{l} }

type linkGuard struct{ Links }

// String names the mesh.
func (g linkGuard) String() string {
	return "check sources of containers in the networks of mesh " + g.Mesh
}

// Needs reports whether the table must exist.
func (g linkGuard) Needs() bool { return len(g.Bridges) > 0 }

// chains returns the chains in the order in which they can be made.
func (l Links) chains() []chainSpec {
	name := linksPrefix + l.Mesh
	claims, to := chainSpec{name: name + "_claims"}, chainSpec{name: name + "_to"}
	for _, p := range l.Networks {
		of := func(source bool) match { return rule(family(p.Addr().Is6()), MatchPrefix(p, source, expr.CmpOpEq)) }
		claims.rules = append(claims.rules, staticRule{"", rule(of(true), goTo(to.name))})
		to.rules = append(to.rules, staticRule{"from an address that is not there", rule(of(false), notBehind(), toOthers(), toOtherLinks(), verdict(expr.VerdictDrop))})
	}
	from := chainSpec{name: name + "_from", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioForward}
	in, accept := func(link string) match { return metaIs(expr.MetaKeyIIFNAME, expr.CmpOpEq, IfName(link)) }, verdict(expr.VerdictAccept)
	for _, b := range l.Bridges {
		from.rules = append(from.rules, staticRule{"", rule(in(b), goTo(to.name))})
	}
	for _, u := range l.Uplinks {
		from.rules = append(from.rules, staticRule{"other hosts", rule(in(u), accept)})
	}
	for _, kind := range [...]string{"bridge", "veth"} {
		from.rules = append(from.rules, staticRule{"", rule(metaIs(metaIIFKind, expr.CmpOpEq, IfName(kind)), goTo(claims.name))})
	}
	return []chainSpec{to, claims, from}
}

// Plan compares the chains.
func (g linkGuard) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	t := layoutOf(nftables.TableFamilyINet).table()
	if len(g.Bridges) == 0 {
		return g.remove(c, t)
	}
	wrong, err := c.wrongChains(nftables.TableFamilyINet, g.chains())
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	return func(enc *nftables.Conn) error {
		for _, ch := range wrong {
			ch.replace(enc, t)
		}
		return nil
	}, nil
}

// remove plans the deletion of the chains that exist.
func (g linkGuard) remove(c *Conn, t *nftables.Table) (func(*nftables.Conn) error, error) {
	var names []string
	var refs []Ref
	for _, ch := range g.chains() {
		names, refs = append(names, ch.name), append(refs, Ref{nftables.TableFamilyINet, TableName, ch.name})
	}
	there, err := c.ReadPresence(refs...)
	if err != nil {
		return nil, err
	}
	if names = kept(names, func(i int) bool { return there[i].Found }); len(names) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error { dropObjects(enc, t, names, nil); return nil }, nil
}

// ofLinks reports whether a chain of our table checks sources of containers.
func ofLinks(name string) bool { return strings.HasPrefix(name, linksPrefix) }
