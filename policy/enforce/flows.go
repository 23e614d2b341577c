// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/policy"
)

// After a change, the kernel still accepts packets of connections that it tracks. So Load notes the
// addresses that the change concerns, and a Cut deletes the entries of their connections that the new program
// denies. Their next packets are judged as first packets.

// concerned returns the addresses of which a difference to a program may deny connections: of pods of
// this node whose chains, or sets in them, change, and of pods that get another identity. What only gets
// larger denies nothing if only rules that accept look at it. So a pod that starts on another node
// concerns nobody.
func concerned(diff policy.Changes, after *policy.Program) map[netip.Addr]bool {
	addrs, parts := make(map[netip.Addr]bool), make(map[string]bool)
	against := againstWhom(after)
	for _, c := range diff.Switch {
		if c.Op == policy.Add && !against.gains(c.Object) {
			continue
		}
		switch o := c.Object.(type) {
		case policy.Chain:
			parts[o.Name] = true
		case policy.Member:
			parts[o.Set] = true
		case policy.Span:
			parts[o.RangeSet] = true
		case policy.Address:
			addrs[o.Addr] = true
		case policy.LocalPod:
			addAll(addrs, o.Addresses)
			if was, ok := c.Was.(policy.LocalPod); ok {
				addAll(addrs, was.Addresses)
			}
		}
	}
	using(after, parts)
	for i := range after.Pods {
		if p := &after.Pods[i]; uses(p, parts) {
			addAll(addrs, p.Addresses)
		}
	}
	return addrs
}

// against is what rules that do not accept look at: names of sets and range sets, and the identities in
// these sets.
type against struct {
	sets    map[string]bool
	numbers map[policy.Number]bool
}

func againstWhom(p *policy.Program) against {
	a := against{make(map[string]bool), make(map[policy.Number]bool)}
	for i := range p.Chains {
		for _, r := range p.Chains[i].Rules {
			if r.Verdict != policy.Accept {
				a.sets[r.Set], a.sets[r.RangeSet] = true, true
			}
		}
	}
	for i := range p.Sets {
		if s := &p.Sets[i]; a.sets[s.Name] {
			for _, n := range s.Members {
				a.numbers[n] = true
			}
		}
	}
	return a
}

// gains reports whether a new object may deny connections.
func (a against) gains(o policy.Object) bool {
	switch o := o.(type) {
	case policy.Address:
		return a.numbers[o.Identity]
	case policy.Member:
		return a.sets[o.Set]
	case policy.Span:
		return a.sets[o.RangeSet]
	}
	return true
}

func addAll(addrs map[netip.Addr]bool, list []netip.Addr) {
	for _, a := range list {
		addrs[a] = true
	}
}

// using adds the chains that use one of these sets.
func using(p *policy.Program, parts map[string]bool) {
	for i := range p.Chains {
		for _, r := range p.Chains[i].Rules {
			if parts[r.Set] || parts[r.RangeSet] {
				parts[p.Chains[i].Name] = true
			}
		}
	}
}

func uses(p *policy.LocalPod, parts map[string]bool) bool {
	for _, side := range p.Sides {
		for _, name := range side.Chains {
			if parts[name] {
				return true
			}
		}
	}
	return false
}

// pods returns the addresses of the pods of this node that have a policy.
func pods(p *policy.Program) map[netip.Addr]bool {
	addrs := make(map[netip.Addr]bool)
	for i := range p.Pods {
		if policed(&p.Pods[i]) {
			addAll(addrs, p.Pods[i].Addresses)
		}
	}
	return addrs
}
