// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The kernel accepts a VXLAN packet from anybody, and then trusts the source address inside it. So a container that
// sends a UDP packet to the port of a tunnel could pretend to be any other container. Our table has these objects
// while a host has a tunnel. <name> is the name of its mesh:
//
//	set tunnel_<name>_44 { typeof ip saddr . @th,336,32 }     end of a tunnel . source addresses inside, both IPv4
//	set tunnel_<name>_46 { typeof ip saddr . @th,304,128 }    IPv6 inside; _64, _66: the end has IPv6
//	set tunnel_<name>_44/24      end of a tunnel . block of that length, without ranges
//	chain tunnel_<name>_raw      hook prerouting, before connection tracking: no port mapping may take
//	                             packets of the tunnel that are for this host
//	chain tunnel_<name>_in       hook input: packets of the tunnel
//	chain tunnel_<name>_source   lets through what is in a set
//	chain tunnel_<name>_link     hook prerouting: packets of the tunnel
//	chain tunnel_<name>_path     a container sends from its own address, and only another host
//	                             that has a tunnel may send through this one
//	chain tunnel_<name>_out      hook postrouting: only this host's kernel sends under its address
//
// Nearly all packets come from blocks, and nearly all blocks have one length. A lookup in a set without ranges takes
// half the time of one in a set with ranges, for which the kernel saves the registers of vector instructions.
//
// All rules look only at UDP packets with the tunnel's port and VNI, so other tunnels with the same port
// are left alone. A host without a device has only the last three chains, if its peers have tunnels and take
// packets from it. A mesh without tunnels has none of these objects, and they are not in the layout: an agent
// makes them, and compares them with what it wants.
const tunnelPrefix = "tunnel_"

// Tunnel is this host's end of the tunnels of a mesh, and what may come out of it.
type Tunnel struct {
	Name string // of the mesh
	Port uint16
	VNI  uint32 // 24 bits
	From []TunnelSource
	Ends []netip.Addr // this host's addresses to which others send

	NoEnd  bool     // this host has no end: only packets to the ends of others are guarded
	Others []uint16 // ports of the ends of others, besides Port
}

// TunnelSource lets packets with a source address from First to Last come from one end of a tunnel.
type TunnelSource struct {
	End         netip.Addr // outer source address
	First, Last netip.Addr // both of one family
	Bits        int        // prefix length, if these are all addresses of a block, or 0
	Comment     string     // for people
}

// families names the families of a source's two addresses: "46" is an end with IPv4 and a source with IPv6.
func (x TunnelSource) families() string {
	digit := func(a netip.Addr) string {
		if a.Is4() {
			return "4"
		}
		return "6"
	}
	return digit(x.End) + digit(x.First)
}

// ofTunnels reports whether an object of our table belongs to a tunnel.
func ofTunnels(name string) bool { return strings.HasPrefix(name, tunnelPrefix) }

// ofMesh reports whether an object of our table belongs to a mesh, whose agent makes it.
func ofMesh(name string) bool { return ofTunnels(name) || ofPlain(name) || ofLinks(name) }

// These are the ends of the names of chains, in the order in which chains are made.
const (
	tunnelRaw    = "_raw"
	tunnelSource = "_source"
	tunnelIn     = "_in"
	tunnelPath   = "_path"
	tunnelLink   = "_link"
	tunnelOut    = "_out"
)

const (
	prioTunnelOut = 300 // after source NAT
	metaIIFKind   = 26  // NFT_META_IIFKIND, include/uapi/linux/netfilter/nf_tables.h
)

// Offsets in the UDP header and behind it, in bytes: VXLAN's header has 8 bytes, and the Ethernet header
// in it 14.
const (
	vniAt       = 8 + 4
	etherTypeAt = 8 + 8 + 12
	insideAt    = 8 + 8 + 14
)

// tunnelSet returns the specification of a set by its name. The kernel compares the source address inside
// as an address of the same length.
func tunnelSet(name string) (s setSpec, ok bool) {
	at := strings.LastIndexByte(name, '_')
	if !ofTunnels(name) || at < len(tunnelPrefix) {
		return setSpec{}, false
	}
	s = setSpec{name: name, family: nftables.TableFamilyINet, level: ofTunnel}
	families, length, ofBlocks := strings.Cut(name[at+1:], "/")
	for _, digit := range families {
		switch digit {
		case '4':
			s.key = append(s.key, fieldIPv4)
		case '6':
			s.key = append(s.key, fieldIPv6)
		}
	}
	if len(families) != 2 || len(s.key) != 2 {
		return setSpec{}, false
	}
	s.interval = !ofBlocks
	return s, !ofBlocks || s.setLength(length)
}

// tunnelSets returns the specifications of a tunnel's sets. A packet is looked up in this order: blocks come first.
func (t Tunnel) tunnelSets() (list []setSpec) {
	lengths := t.lengths()
	for _, families := range tunnelFamilies {
		if n := lengths[families]; n != 0 {
			list = append(list, t.set(families+"/"+strconv.Itoa(n)))
		}
	}
	for _, families := range tunnelFamilies {
		list = append(list, t.set(families))
	}
	return list
}

var tunnelFamilies = [...]string{"44", "46", "64", "66"}

func (t Tunnel) set(suffix string) setSpec {
	s, _ := tunnelSet(tunnelPrefix + t.Name + "_" + suffix)
	return s
}

// lengths returns the length that most blocks have, by the families of their sources. If two lengths are equally
// frequent, it is the shorter one.
func (t Tunnel) lengths() map[string]int {
	count := map[string]map[int]int{}
	for _, x := range t.From {
		if x.Bits == 0 {
			continue
		}
		if count[x.families()] == nil {
			count[x.families()] = map[int]int{}
		}
		count[x.families()][x.Bits]++
	}
	most := map[string]int{}
	for families, blocks := range count {
		for bits, n := range blocks {
			if had := most[families]; n > blocks[had] || n == blocks[had] && bits < had {
				most[families] = bits
			}
		}
	}
	return most
}

// elements returns the elements of all sources.
func (t Tunnel) elements() (list []Element) {
	lengths := t.lengths()
	for _, x := range t.From {
		families := x.families()
		e := Element{
			Set:     tunnelPrefix + t.Name + "_" + families,
			Key:     slices.Concat(x.End.AsSlice(), x.First.AsSlice()),
			Comment: CleanComment(x.Comment),
		}
		if x.Bits != 0 && x.Bits == lengths[families] {
			e.Set += "/" + strconv.Itoa(x.Bits)
		} else {
			e.KeyEnd = slices.Concat(x.End.AsSlice(), x.Last.AsSlice())
		}
		list = append(list, e)
	}
	return list
}

// chainsOfEnd and chainsOut return the names of the chains of a mesh, in the order in which they can be made.
func chainsOfEnd(mesh string) []string {
	return []string{tunnelPrefix + mesh + tunnelRaw, tunnelPrefix + mesh + tunnelSource, tunnelPrefix + mesh + tunnelIn}
}

func chainsOut(mesh string) []string {
	return []string{tunnelPrefix + mesh + tunnelPath, tunnelPrefix + mesh + tunnelLink, tunnelPrefix + mesh + tunnelOut}
}

// sets returns the sets of the tunnel.
func (t Tunnel) sets() []setSpec {
	if t.NoEnd {
		return nil
	}
	return t.tunnelSets()
}

// chains returns the chains, in the same order.
func (t Tunnel) chains() []chainSpec {
	name := tunnelPrefix + t.Name
	if t.NoEnd {
		return t.out()
	}
	return append([]chainSpec{
		{name: name + tunnelRaw, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioRaw, rules: []staticRule{
			{"no port mapping takes it", t.rule(toLocal(), match{&expr.Notrack{}})},
		}},
		{name: name + tunnelSource, rules: t.sourceRules()},
		{name: name + tunnelIn, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, prio: prioForward, rules: []staticRule{
			{"", t.rule(goTo(name + tunnelSource))},
		}},
	}, t.out()...)
}

// out returns the chains that guard the ends of others.
func (t Tunnel) out() []chainSpec {
	name := tunnelPrefix + t.Name
	filter := nftables.ChainTypeFilter
	var link, out []staticRule
	for _, port := range append([]uint16{t.Port}, t.Others...) {
		to := Tunnel{Port: port, VNI: t.VNI}
		link = append(link, staticRule{"", to.rule(goTo(name + tunnelPath))})
		out = append(out, staticRule{"not from this host itself", to.rule(translated(), verdict(expr.VerdictDrop))})
	}
	return []chainSpec{
		{name: name + tunnelPath, rules: t.pathRules()},
		{name: name + tunnelLink, typ: filter, hook: nftables.ChainHookPrerouting, prio: prioForward, rules: link},
		{name: name + tunnelOut, typ: filter, hook: nftables.ChainHookPostrouting, prio: prioTunnelOut, rules: out},
	}
}

// pathRules returns the rules for packets of a tunnel as they come from a link, after destination NAT: before Linux 5.19
// only the hook prerouting can look up the way back through a link. A container is behind a bridge or a veth.
// A packet from there may have the address of another host only if the route to that host leads there, too. A packet
// that is not for this host must always come from the link to its source; an address of this host is behind no link.
// Most packets are for an end of this host, and comparing the address costs less than a route lookup.
func (t Tunnel) pathRules() (rules []staticRule) {
	add := func(of match) {
		rules = append(rules, staticRule{"from an address that is not there", rule(of, notBehind(), verdict(expr.VerdictDrop))})
	}
	for _, kind := range [...]string{"bridge", "veth"} {
		add(metaIs(metaIIFKind, expr.CmpOpEq, IfName(kind)))
	}
	for _, end := range t.Ends {
		to := match{loadAddr(end.Is6(), false, reg1), &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: end.AsSlice()}}
		rules = append(rules, staticRule{"for this host", rule(family(end.Is6()), to, verdict(expr.VerdictAccept))})
	}
	add(toOthers())
	return rules
}

// sourceRules returns the rules that judge a packet of the tunnel by the addresses outside and inside.
func (t Tunnel) sourceRules() (rules []staticRule) {
	for _, s := range t.tunnelSets() {
		rules = append(rules, staticRule{"", rule(insideOf(s), verdict(expr.VerdictAccept))})
	}
	return append(rules, staticRule{"not from a peer, or from an address that the peer does not have", verdict(expr.VerdictDrop)})
}

// rule returns a rule for packets of the tunnel. It loads four bytes, which the kernel reads without a call, instead
// of the three of the VNI.
func (t Tunnel) rule(more ...match) match {
	port, vni := binary.BigEndian.AppendUint16(nil, t.Port), binary.BigEndian.AppendUint32(nil, t.VNI<<8)
	load := func(at, size uint32) *expr.Payload {
		return &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: size}
	}
	is := func(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: data} }
	return rule(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_UDP}),
		match{load(2, 2), is(port), load(vniAt, 4), bitwise(reg1, []byte{0xff, 0xff, 0xff, 0}), is(vni)}, rule(more...))
}

// insideOf matches a packet of the tunnel whose two source addresses are in the set.
func insideOf(s setSpec) match {
	etherType, at, second := uint16(unix.ETH_P_IP), uint32(insideAt+12), reg32(1)
	if s.key[0] == fieldIPv6 {
		second = reg32(4)
	}
	if s.key[1] == fieldIPv6 {
		etherType, at = unix.ETH_P_IPV6, insideAt+8
	}
	return rule(
		match{
			&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: etherTypeAt, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: binary.BigEndian.AppendUint16(nil, etherType)},
		},
		family(s.key[0] == fieldIPv6),
		match{
			loadAddr(s.key[0] == fieldIPv6, true, reg1),
			&expr.Payload{DestRegister: second, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: uint32(s.key[1].size())},
		},
		masked(second, cmp.Or(s.length, 8*s.key[1].size()), s.key[1].size()),
		match{inSet(s.name, false)})
}

// toOthers matches packets that are not for this host.
func toOthers() match {
	return match{
		&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(unix.RTN_LOCAL)},
	}
}

// toOtherLinks matches packets that the host does not send back through the link from which they come.
func toOtherLinks() match { return notOnLink(false) }

// notBehind matches packets whose source address the host does not reach through the link from which they
// come.
func notBehind() match { return notOnLink(true) }

// notOnLink matches packets with an address that the host does not reach through the link from which they come.
func notOnLink(source bool) match {
	return match{
		&expr.Fib{Register: reg1, FlagSADDR: source, FlagDADDR: !source, FlagIIF: true, FlagPRESENT: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 4)},
	}
}

// GuardTunnel returns the work that makes the kernel's objects of a tunnel what t wants.
func GuardTunnel(t Tunnel) Extra { return tunnelGuard{t} }

// UnguardTunnel returns the work that removes the objects of the tunnel of a mesh. With keepOut, the objects that
// guard the ends of others stay.
func UnguardTunnel(mesh string, keepOut bool) Extra { return tunnelRemoval{mesh, keepOut} }

type tunnelGuard struct{ Tunnel }

// String names the mesh.
func (g tunnelGuard) String() string { return "guard the tunnel of mesh " + g.Name }

// Needs reports that the table must exist.
func (tunnelGuard) Needs() bool { return true }

// Plan compares chains, rules, sets and elements.
func (g tunnelGuard) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	have, err := c.readTunnel(g.Tunnel)
	if err != nil {
		return nil, err
	}
	want := g.elements()
	gone, added := lacking(have.elements, want), lacking(want, have.elements)
	if len(have.noSets)+len(have.oldSets)+len(have.wrong)+len(gone)+len(added) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error { return have.write(enc, gone, added) }, nil
}

// tunnelState is what the kernel has of a tunnel.
type tunnelState struct {
	noSets   []setSpec // missing
	oldSets  []setSpec // of another length
	wrong    []wrongChain
	elements []Element
}

// readTunnel compares the kernel with a tunnel.
func (c *Conn) readTunnel(t Tunnel) (s tunnelState, err error) {
	names, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return s, err
	}
	want := t.sets()
	for _, set := range setsOfTunnel(names, t.Name) {
		if len(want) > 0 && !slices.ContainsFunc(want, func(w setSpec) bool { return w.name == set.name }) {
			s.oldSets = append(s.oldSets, set)
		}
	}
	for _, set := range want {
		if !slices.Contains(names, set.name) {
			s.noSets = append(s.noSets, set)
			continue
		}
		list, err := c.List(set.name)
		if err != nil {
			return s, err
		}
		s.elements = append(s.elements, list...)
	}
	s.wrong, err = c.wrongChains(nftables.TableFamilyINet, t.chains())
	return s, err
}

// setsOfTunnel returns the specifications of those sets that belong to the tunnel of a mesh.
func setsOfTunnel(names []string, mesh string) (list []setSpec) {
	for _, name := range names {
		suffix, ok := strings.CutPrefix(name, tunnelPrefix+mesh+"_")
		if s, known := tunnelSet(name); ok && known && !strings.Contains(suffix, "_") {
			list = append(list, s)
		}
	}
	return list
}

// write queues what differs.
func (s tunnelState) write(enc *nftables.Conn, gone, added []Element) error {
	t := layoutOf(nftables.TableFamilyINet).table()
	for _, set := range s.noSets {
		if err := enc.AddSet(set.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", set.name, err)
		}
	}
	for _, ch := range s.wrong {
		ch.replace(enc, t)
	}
	dropObjects(enc, t, nil, s.oldSets)
	return errors.Join(bySet(gone, 0, enc.SetDeleteElements), bySet(added, 0, enc.SetAddElements))
}

// lacking returns the elements of list whose key is not in others, each key once. A tunnel may have many
// thousands.
func lacking(list, others []Element) (out []Element) {
	type at struct{ set, key, end string }
	seen := make(map[at]bool, len(others))
	for _, e := range others {
		seen[at{e.Set, string(e.Key), string(e.KeyEnd)}] = true
	}
	for _, e := range list {
		k := at{e.Set, string(e.Key), string(e.KeyEnd)}
		if !seen[k] {
			seen[k] = true
			out = append(out, e)
		}
	}
	return out
}

type tunnelRemoval struct {
	mesh    string
	keepOut bool
}

// chains returns the names of the chains to remove, in the order in which they can be made.
func (r tunnelRemoval) chains() []string {
	if r.keepOut {
		return chainsOfEnd(r.mesh)
	}
	return append(chainsOfEnd(r.mesh), chainsOut(r.mesh)...)
}

// String names the mesh.
func (r tunnelRemoval) String() string { return "remove the guard of the tunnel of mesh " + r.mesh }

// Needs reports that a missing table stays missing.
func (tunnelRemoval) Needs() bool { return false }

// Plan looks which objects exist.
func (r tunnelRemoval) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	chains := r.chains()
	refs := make([]Ref, len(chains))
	for i, name := range chains {
		refs[i] = Ref{nftables.TableFamilyINet, TableName, name}
	}
	there, err := c.ReadPresence(refs...)
	if err != nil {
		return nil, err
	}
	names, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	chains = kept(chains, func(i int) bool { return there[i].Found })
	sets := setsOfTunnel(names, r.mesh)
	if len(chains)+len(sets) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error {
		dropObjects(enc, layoutOf(nftables.TableFamilyINet).table(), chains, sets)
		return nil
	}, nil
}
