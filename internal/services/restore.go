// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Table is what the kernel has: elements without their endpoints, and the endpoint of each, which is not valid in sets. No
// element is a memory of a client.
type Table map[Element]netip.AddrPort

// CompileOver returns the program of a node whose kernel has a table already, as after a start of the agent. Endpoints keep
// their slots in it.
func CompileOver(s *State, have Table) *Program {
	p := Compile(s, nil)
	for _, list := range p.ports {
		for _, port := range list {
			port.cluster = port.cluster.keep(have.clusterSlots(port))
			if port.local != "" {
				port.local = port.local.keep(have.localSlots(port))
			}
		}
	}
	return p
}

// keepsLocal reports whether a frontend of a port shows everybody only endpoints on this node.
func (p *port) keepsLocal(f front) bool { return f.kind == clusterIP && p.internalLocal }

// clusterSlots returns the endpoints of a port in their slots. All its frontends have the same.
func (t Table) clusterSlots(p *port) []netip.AddrPort {
	for _, f := range p.fronts {
		if list := t.slotsOf(f.Frontend, One, Class, Many); len(list) > 0 && !p.keepsLocal(f) {
			return list
		}
	}
	return nil
}

// localSlots does the same for the endpoints on this node.
func (t Table) localSlots(p *port) []netip.AddrPort {
	for _, f := range p.fronts {
		list := t.slotsOf(f.Frontend, OutsideOne, OutsideClass, OutsideMany)
		if p.keepsLocal(f) {
			list = t.slotsOf(f.Frontend, One, Class, Many)
		}
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// slotsOf returns the endpoints of one frontend in their slots.
func (t Table) slotsOf(f Frontend, one, class, many Set) (list []netip.AddrPort) {
	if to, ok := t[f.in(one, 0)]; ok {
		return []netip.AddrPort{to}
	}
	for size := uint32(2); size <= largestClass; size *= 2 {
		if _, ok := t[f.in(class, size)]; !ok {
			continue
		}
		for slot := range size {
			e := f.in(many, size)
			e.Slot = uint16(slot)
			to, ok := t[e]
			if !ok {
				return list
			}
			list = append(list, to)
		}
	}
	return list
}

// From returns the change that makes a table what the program says. It empties the table's map. It does not list what clients
// remember: Remembers says which memories may stay. All UDP frontends are compared, since nobody knows what happened to them.
func (p *Program) From(have Table) Change {
	c := newChanges()
	steps := make(map[Frontend]*Step)
	for f := range p.wanted {
		is := p.winner(f)
		f.elements(is, func(e Element) { have.compare(e, stepOf(steps, f)) })
		c.flow(f, entry{}, is)
	}
	p.shared.each(func(e Element) { have.compare(e, &c.shared[e.Set]) })
	for e, to := range have {
		e.Endpoint = to
		if s := &c.shared[e.Set]; e.ofOneFrontend() {
			s = stepOf(steps, e.Frontend)
			s.Remove = append(s.Remove, e)
		} else {
			s.Remove = append(s.Remove, e)
		}
	}
	for _, f := range slices.SortedFunc(maps.Keys(steps), Frontend.Compare) {
		c.step(*steps[f])
	}
	slices.SortFunc(c.Flows, func(a, b Flow) int { return a.Frontend.Compare(b.Frontend) })
	return c.done()
}

func stepOf(steps map[Frontend]*Step, f Frontend) *Step {
	if steps[f] == nil {
		steps[f] = new(Step)
	}
	return steps[f]
}

// compare takes an element of the program out of the table, and adds to the step what differs.
func (t Table) compare(e Element, s *Step) {
	to, ok := t[e.key()]
	if ok {
		delete(t, e.key())
	}
	if ok && to == e.Endpoint {
		return
	}
	s.Add = append(s.Add, e)
	if ok {
		e.Endpoint = to
		s.Remove = append(s.Remove, e)
	}
}

// ofOneFrontend reports whether only one frontend has the element.
func (e Element) ofOneFrontend() bool {
	switch e.Set {
	case Pods, Keeping, Hairpin, ClusterIP, VIP, NodeAddress, CIDR:
		return false
	}
	return true
}

// Remembers reports whether a client may go on to an endpoint that it remembers (Packet.Remembered). What it remembers of a node port
// stays if the address has no node ports for a while.
func (p *Program) Remembers(k Packet) bool {
	f := Frontend{k.To.Addr(), k.Protocol, k.To.Port()}
	e := p.winner(f)
	if e.port == nil {
		f.Addr = anyAddress(f.Addr.Is6())
		e = p.winner(f)
	}
	return e.port != nil && e.affinity > 0 && slices.Contains(p.viewOf(e, k.From).endpoints, k.Remembered)
}

// HasNodePorts reports whether node ports are at an address.
func (p *Program) HasNodePorts(a netip.Addr) bool { return slices.Contains(p.nodePorts, a) }

// NodePortAddresses returns the addresses that have node ports.
func (p *Program) NodePortAddresses() []netip.Addr { return slices.Clone(p.nodePorts) }

// SetNamed returns the element that has only what the name of its set says. ok is false if no set has the name.
func SetNamed(name string) (e Element, ok bool) {
	kind, size, sized := strings.Cut(name, "_")
	if len(kind) < 2 {
		return e, false
	}
	if sized {
		n, err := strconv.ParseUint(size, 10, 32)
		if err != nil {
			return e, false
		}
		e.Size = uint32(n)
	}
	e.IPv6 = kind[len(kind)-1] == '6'
	kind = kind[:len(kind)-1]
	for e.Set = Pods; e.Set <= CIDR; e.Set++ {
		e.NodePort = kind == "np"+e.Set.name()
		if (e.NodePort || kind == e.Set.name()) && e.Name() == name {
			return e, true
		}
	}
	return e, false
}

// Sets returns the names of the sets whose names have a number, and that the program has elements in.
func (p *Program) Sets() []string {
	names := make(map[Element]bool)
	for f := range p.wanted {
		f.elements(p.winner(f), func(e Element) {
			if e.Size > 0 {
				names[Element{Set: e.Set, IPv6: e.IPv6, NodePort: e.NodePort, Size: e.Size}] = true
			}
		})
	}
	list := make([]string, 0, len(names))
	for e := range names {
		list = append(list, e.Name())
	}
	slices.Sort(list)
	return list
}
