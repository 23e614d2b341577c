// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// state is what the table has of policies: what a program needs, or what the kernel has.
type state struct {
	chains   map[string]bool
	counters map[string]bool
	sets     map[string]bool
	base     bool   // base chains exist, or objects that belong to them
	version  uint16 // the version of the base chains; 0 if one of them is missing

	// same reports whether a chain has these rules.
	same func(chain string, lines []line) bool
	// elements returns the elements of a set, sorted.
	elements func(set string) ([]element, error)
}

// element is one element of a set or a map. first and last differ only in sets of ranges.
type element struct {
	first, last netip.Addr
	ports       [2]uint16 // first and last, of a set of ports, which has no addresses
	chain       string    // of a map
}

func (e element) compare(o element) int {
	return cmp.Or(e.first.Compare(o.first), e.last.Compare(o.last), slices.Compare(e.ports[:], o.ports[:]), cmp.Compare(e.chain, o.chain))
}

// wanted is the state that a program needs. titles and pods are only for people who read the table.
type wanted struct {
	state
	lines  chains
	titles map[string]string     // what a set is for
	pods   map[netip.Addr]string // names of this node's pods
}

// stateOf returns what a program needs in the kernel. With base, it has the base chains even if no pod
// of this node has a policy.
func stateOf(p *policy.Program, base bool) *wanted {
	w := &wanted{lines: chainsOf(p, base), titles: make(map[string]string), pods: make(map[netip.Addr]string)}
	w.chains, w.counters, w.sets = make(map[string]bool), make(map[string]bool), make(map[string]bool)
	fill := make(map[string]func() []element)
	index := addressIndex{program: p}
	for i := range p.Sets {
		w.addSets(kindPods, p.Sets[i].Name, fill, func(family int) []element { return index.of(&p.Sets[i], family) })
	}
	for i := range p.RangeSets {
		w.addSets(kindNets, p.RangeSets[i].Name, fill, func(family int) []element { return rangesOf(&p.RangeSets[i], family) })
	}
	for name, lines := range w.lines {
		w.chains[name] = true
		for _, l := range lines {
			if l.counter != "" && l.counter != nft.CountForged { // nft.CheckSources makes it
				w.counters[l.counter] = true
			}
		}
	}
	w.base = len(w.lines) > 0
	if w.base {
		w.version = baseVersion
	}
	w.addPorts(p, fill)
	w.addDispatch(p, fill)
	w.addClosed(p, fill)
	w.same = func(chain string, lines []line) bool { return slices.Equal(w.lines[chain], lines) }
	w.elements = func(set string) ([]element, error) { return fill[set](), nil }
	return w
}

// addSets adds the sets of both families for one object of the program.
func (w *wanted) addSets(kind, title string, fill map[string]func() []element, elements func(family int) []element) {
	for family := range families {
		name := ofFamily(kind, family, title)
		w.sets[name], w.titles[name] = true, title
		fill[name] = func() []element { return elements(family) }
	}
}

// addDispatch adds the maps from the addresses of pods to their chains.
func (w *wanted) addDispatch(p *policy.Program, fill map[string]func() []element) {
	if len(w.lines) == 0 {
		return
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for family := range families {
			name := dispatchOf(d, family)
			w.sets[name] = true
			fill[name] = func() []element { return dispatchElements(p, d, family) }
		}
	}
	for i := range p.Pods {
		for _, a := range p.Pods[i].Addresses {
			w.pods[a] = p.Pods[i].Name
		}
	}
}

// addClosed adds the sets that ADDs look at: what they closed, and the addresses that a program knows.
func (w *wanted) addClosed(p *policy.Program, fill map[string]func() []element) {
	if !w.base {
		return
	}
	for _, name := range kernelSets() {
		w.sets[name] = true
	}
	for family := range families {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			w.sets[closedSet(d, family)] = true
		}
		local := kindLocal + families[family]
		w.sets[local] = true
		fill[local] = func() []element { return localElements(p, family) }
	}
}

// localElements returns the addresses of this node's pods, with and without policies. If no pod has a
// policy, no other object has these addresses, so there are none.
func localElements(p *policy.Program, family int) (out []element) {
	if !anyPoliced(p) {
		return nil
	}
	for i := range p.Pods {
		for _, a := range p.Pods[i].Addresses {
			if familyOf(a) == family {
				out = append(out, element{first: a, last: a})
			}
		}
	}
	slices.SortFunc(out, element.compare)
	return out
}

func dispatchElements(p *policy.Program, d policy.Direction, family int) (out []element) {
	for i := range p.Pods {
		pod := &p.Pods[i]
		if !policed(pod) {
			continue
		}
		for _, a := range pod.Addresses {
			if familyOf(a) == family {
				out = append(out, element{first: a, last: a, chain: kindPod[d] + hash(pod.Name)})
			}
		}
	}
	slices.SortFunc(out, element.compare)
	return out
}

func rangesOf(s *policy.RangeSet, family int) (out []element) {
	for _, r := range s.Ranges {
		if familyOf(r.First) == family {
			out = append(out, element{first: r.First, last: r.Last})
		}
	}
	return out
}

// addressIndex finds the addresses of an identity.
type addressIndex struct {
	program *policy.Program
	byID    map[policy.Number][2][]netip.Addr
}

// of returns the addresses of one family that have an identity of the set.
func (x *addressIndex) of(s *policy.Set, family int) (out []element) {
	if x.byID == nil {
		x.byID = make(map[policy.Number][2][]netip.Addr)
		for _, a := range x.program.Addresses {
			list := x.byID[a.Identity]
			list[familyOf(a.Addr)] = append(list[familyOf(a.Addr)], a.Addr)
			x.byID[a.Identity] = list
		}
	}
	for _, id := range s.Members {
		for _, a := range x.byID[id][family] {
			out = append(out, element{first: a, last: a})
		}
	}
	slices.SortFunc(out, element.compare)
	return out
}

// sameSets returns a function that reports whether a set surely has the same elements in two programs. It does not
// compare elements: all sets together may have far more of them than the programs have addresses. A set of pods has the
// same elements if it has the same identities, and none of them gets or loses an address. A set of ports never changes.
func sameSets(before, after *policy.Program) func(set string) bool {
	moved := make(map[policy.Number]bool)
	removed, added := differences(before.Addresses, after.Addresses, func(a, b policy.Address) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Identity, b.Identity))
	})
	for _, a := range append(removed, added...) {
		moved[a.Identity] = true
	}
	members := make(map[string][]policy.Number)
	for _, s := range before.Sets {
		members[s.Name] = s.Members
	}
	same := make(map[string]bool)
	for _, s := range after.Sets {
		was, ok := members[s.Name]
		if ok && slices.Equal(was, s.Members) && !slices.ContainsFunc(s.Members, func(n policy.Number) bool { return moved[n] }) {
			same[ofFamily(kindPods, 0, s.Name)], same[ofFamily(kindPods, 1, s.Name)] = true, true
		}
	}
	return func(set string) bool { return same[set] || isPorts(set) }
}

// verdict returns the verdict of a map's element.
func (e element) verdict() *expr.Verdict {
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.chain}
}
