// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Difference is where the kernel enforces something else for a pod than a decision says.
type Difference struct {
	Direction policy.Direction
	Opens     bool // the kernel lacks what the decision has
	Text      string
}

// Closed reports whether an ADD closed an address in a direction, and nothing has opened it.
func (v *View) Closed(a netip.Addr, d policy.Direction) (bool, error) {
	set := closedSet(d, familyOf(a))
	if v.table == nil || !v.uses(set) {
		return false, nil
	}
	members, err := v.table.Members(set)
	return slices.ContainsFunc(members, func(m nft.Member) bool { return bytes.Equal(m.Low, a.AsSlice()) }), err
}

// Differences compares what the kernel enforces for an address with a decision. It leaves out what
// cannot be compared: a decision about a pod whose labels are not known, and an address that its ADD
// closed for a policy.
func (v *View) Differences(a netip.Addr, want *policy.Decision) (list []Difference, err error) {
	for d, side := range want.Sides {
		d := policy.Direction(d)
		if side.Unknown {
			continue
		}
		closed, err := v.Closed(a, d)
		if err != nil {
			return nil, err
		}
		have, err := v.installed(a, d)
		if err != nil {
			return nil, err
		}
		list = append(list, differ(d, side, have, closed)...)
	}
	return list, nil
}

// installed is what the kernel has for an address in one direction: the policies whose chains judge it, by
// these chains, and policies without a chain of their own.
type installed struct {
	chains   map[string]string
	copied   map[string]bool
	isolated bool
}

func (v *View) installed(a netip.Addr, d policy.Direction) (h installed, err error) {
	h.chains, h.copied = make(map[string]string), make(map[string]bool)
	chain, err := v.chainFor(a, d)
	if chain != "" {
		v.hold(chain, &h)
	}
	return h, err
}

// hold reads the rules of a pod's chain, or of its tier Admin.
func (v *View) hold(chain string, h *installed) {
	for _, r := range v.table.Rules[chain] {
		switch _, to, _ := r.Verdict(); {
		case ofPolicy(to):
			h.chains[to] = v.policyIn(to, r.Comment())
		case ofAdmin(to):
			v.hold(to, h)
		case ofAdmin(chain) && ofRule(r.Comment()):
			name, _, _ := strings.Cut(r.Comment(), " ")
			h.copied[name] = true
		case isolating(r):
			h.isolated = true
		}
	}
}

// copiedName returns the name of a policy as far as the comments of its copied rules have it.
func copiedName(policy string) string {
	name, _, _ := strings.Cut(nft.CleanComment(policy+" "), " ")
	return name
}

// chainFor returns the chain to which a packet of an address goes in a direction. It is empty if the
// address has none.
func (v *View) chainFor(a netip.Addr, d policy.Direction) (string, error) {
	set := dispatchOf(d, familyOf(a))
	if v.table == nil || !v.uses(set) {
		return "", nil
	}
	members, err := v.table.Members(set)
	for _, m := range members {
		if m.Verdict != nil && bytes.Equal(m.Low, a.AsSlice()) {
			return m.Verdict.Chain, nil
		}
	}
	return "", err
}

func differ(d policy.Direction, want policy.Side, have installed, closed bool) (list []Difference) {
	var missing, more []string
	wanted := make(map[string]bool)
	for _, name := range asked(want) {
		chain := kindPolicy[d] + hash(name)
		wanted[chain], wanted[copiedName(policyOf(name))] = true, true
		if have.chains[chain] == "" && !have.copied[copiedName(policyOf(name))] {
			missing = append(missing, Kind(policyOf(name)))
		}
	}
	for chain, name := range have.chains {
		if !wanted[chain] {
			more = append(more, Kind(name))
		}
	}
	for name := range maps.Keys(have.copied) {
		if !wanted[name] {
			more = append(more, Kind(name))
		}
	}
	switch isolated := want.Isolated && !have.isolated; {
	case closed && (want.Isolated || len(want.Chains) > 0):
		return nil // the ADD closed it
	case closed:
		more = append(more, "that its ADD closed it")
	case len(missing) > 0 && isolated:
		list = append(list, Difference{d, true, "the mirror has " + texts(missing) + " and isolates it, the kernel does not"})
	case isolated:
		list = append(list, Difference{d, true, "the mirror isolates it, the kernel does not"})
	case len(missing) > 0:
		list = append(list, Difference{d, true, "the mirror has " + texts(missing) + ", the kernel does not"})
	}
	if have.isolated && !want.Isolated {
		more = append(more, "that it is isolated")
	}
	if len(more) > 0 {
		list = append(list, Difference{d, false, "the kernel has " + texts(more) + ", the mirror does not"})
	}
	return list
}

// asked returns the chains that a pod's chain jumps to. If a pod is isolated, the tier Baseline after
// its NetworkPolicies is not asked.
func asked(s policy.Side) []string {
	last := len(s.Chains)
	for s.Isolated && last > 0 && !strings.Contains(policyOf(s.Chains[last-1]), "/") {
		last--
	}
	return s.Chains[:last]
}

func texts(list []string) string {
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ", ")
}
