// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// Change is what makes the kernel do what a new program says instead of an old one. A small change is one transaction. A large one
// is several, because a large transaction stops the other ones of the node.
type Change struct {
	// Steps are in the order in which a frontend is complete before it is visible.
	Steps []Step

	// Forget lists the memories of clients that must go after the switch, and once more a moment later, since packets may
	// have written some meanwhile.
	Forget []Memory
	// Moved lists clients that became this node or its pods, or stopped being so: everything that they remember must go too.
	Moved []netip.Prefix
	// Flows lists the UDP frontends whose flows are to be compared after the switch.
	Flows []Flow
}

// Step is what must be in one transaction: first Remove, then Add. An element that gets another endpoint is in both.
type Step struct{ Remove, Add []Element }

// Memory is what clients with affinity remember: that a frontend sent them to an endpoint. Inside are the clients that are this
// node or its pods, and Outside are the others.
type Memory struct {
	Frontend        Frontend
	Endpoint        netip.AddrPort
	Inside, Outside bool
}

// Flow says which entries of connection tracking a UDP frontend has: those that go to a serving endpoint, whatever the
// policies say now. The others are deleted, also those without translation, as packets make them before the frontend exists.
type Flow struct {
	Frontend Frontend
	Serving  []netip.AddrPort
}

// Diff returns the change from one program to another. From nil it has all of the program.
func Diff(old, p *Program) Change {
	if old == nil {
		old = new(Program)
	}
	c := newChanges()
	all := slices.AppendSeq(make([]Frontend, 0, len(p.wanted)), maps.Keys(p.wanted))
	for f := range old.wanted {
		if _, both := p.wanted[f]; !both {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, Frontend.Compare)
	for _, f := range all {
		c.frontend(f, old.winner(f), p.winner(f))
	}
	touch := func(e Element) { c.shares[e] = 0 }
	old.shared.each(touch)
	p.shared.each(touch)
	for _, e := range slices.SortedFunc(maps.Keys(c.shares), Element.compareShared) {
		c.share(e, old.shared.count(e), p.shared.count(e))
	}
	c.moved(old.sides(), p.sides())
	return c.done()
}

// moved adds who is on one side before or after, but not both.
func (c *changes) moved(was, is []netip.Prefix) {
	for _, r := range append(slices.Clone(was), is...) {
		if slices.Contains(was, r) != slices.Contains(is, r) {
			c.Moved = append(c.Moved, r)
		}
	}
}

// sides returns the clients that are this node or its pods.
func (p *place) sides() []netip.Prefix {
	list := slices.Clone(p.pods)
	for _, a := range p.local {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// changes collects a Change.
type changes struct {
	Change
	shares map[Element]int // how many frontends more, or fewer, need an element
	shared [CIDR + 1]Step  // of elements that no frontend has for itself
}

func newChanges() *changes { return &changes{shares: make(map[Element]int)} }

// frontend adds what differs for one frontend.
func (c *changes) frontend(f Frontend, was, is entry) {
	if was == is {
		return
	}
	c.step(f.step(was, is))
	f.shares(was, func(e Element) { c.shares[e]-- })
	f.shares(is, func(e Element) { c.shares[e]++ })
	c.forget(f, was, is)
	c.flow(f, was, is)
}

// step returns the elements of a frontend that differ.
func (f Frontend) step(was, is entry) (s Step) {
	had := make(map[Element]netip.AddrPort)
	f.elements(was, func(e Element) { had[e.key()] = e.Endpoint })
	f.elements(is, func(e Element) {
		if to, ok := had[e.key()]; !ok || to != e.Endpoint {
			s.Add = append(s.Add, e)
			return
		}
		delete(had, e.key())
	})
	f.elements(was, func(e Element) {
		if _, gone := had[e.key()]; gone {
			s.Remove = append(s.Remove, e)
		}
	})
	return s
}

func (c *changes) step(s Step) {
	if len(s.Remove)+len(s.Add) > 0 {
		c.Steps = append(c.Steps, s)
	}
}

func (c *changes) share(e Element, had, has int) {
	switch s := &c.shared[e.Set]; {
	case had == 0 && has > 0:
		s.Add = append(s.Add, e)
	case had > 0 && has == 0:
		s.Remove = append(s.Remove, e)
	}
}

// forget adds the endpoints to which a frontend may not send any more clients of one side. If affinity ends, all
// are forgotten: it may begin again before they expire.
func (c *changes) forget(f Frontend, was, is entry) {
	if was.port == nil || was.affinity == 0 {
		return
	}
	inside, outside := was.views()
	var stayInside, stayOutside view
	if is.port != nil && is.affinity > 0 {
		stayInside, stayOutside = is.views()
	}
	gone := make(map[netip.AddrPort]Memory)
	for _, e := range without(inside.endpoints, stayInside.endpoints) {
		gone[e] = Memory{Frontend: f, Endpoint: e, Inside: true}
	}
	for _, e := range without(outside.endpoints, stayOutside.endpoints) {
		gone[e] = Memory{Frontend: f, Endpoint: e, Inside: gone[e].Inside, Outside: true}
	}
	for _, m := range gone {
		c.Forget = append(c.Forget, m)
	}
}

func without(list, stay []netip.AddrPort) (gone []netip.AddrPort) {
	stays := make(map[netip.AddrPort]bool, len(stay))
	for _, e := range stay {
		stays[e] = true
	}
	for _, e := range list {
		if !stays[e] {
			gone = append(gone, e)
		}
	}
	return gone
}

// flow adds a UDP frontend that is new or has other serving endpoints, also none. Those that nobody has any more are left
// to their timeout.
func (c *changes) flow(f Frontend, was, is entry) {
	if is.port == nil || f.Protocol != l4.UDP || was.port != nil && was.serving == is.serving {
		return
	}
	c.Flows = append(c.Flows, Flow{f, is.serving.list()})
}

// done puts shared elements before and after the frontends. An address is made visible when all that it has is there, and
// hidden before anything goes. In a ServiceCIDR what is not visible is dropped, so its range comes last.
func (c *changes) done() Change {
	frontends := c.Steps
	c.Steps = nil
	c.together(Pods, Keeping)
	c.removeEach(VIP)
	c.removeEach(ClusterIP)
	c.addEach(Hairpin)
	c.Steps = append(c.Steps, frontends...)
	c.addEach(ClusterIP)
	c.addEach(VIP)
	c.removeEach(Hairpin)
	c.together(NodeAddress, CIDR)

	slices.SortFunc(c.Forget, func(a, b Memory) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), a.Endpoint.Compare(b.Endpoint))
	})
	slices.SortFunc(c.Moved, netip.Prefix.Compare)
	c.Moved = slices.Compact(c.Moved)
	return c.Change
}

// together makes one step of what a node has of its own, which is little.
func (c *changes) together(a, b Set) {
	c.step(Step{slices.Concat(c.shared[a].Remove, c.shared[b].Remove), slices.Concat(c.shared[a].Add, c.shared[b].Add)})
}

func (c *changes) addEach(set Set) {
	for _, e := range c.shared[set].Add {
		c.step(Step{Add: []Element{e}})
	}
}

func (c *changes) removeEach(set Set) {
	for _, e := range c.shared[set].Remove {
		c.step(Step{Remove: []Element{e}})
	}
}

// compareShared orders what has an address or a range alone.
func (e Element) compareShared(o Element) int {
	return cmp.Or(cmp.Compare(e.Set, o.Set), e.Frontend.Addr.Compare(o.Frontend.Addr), e.Range.Compare(o.Range))
}

// Compare orders frontends by address, protocol and port.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Protocol, o.Protocol), cmp.Compare(f.Port, o.Port))
}
