// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// After a change, the kernel still accepts packets of connections that it tracks. So Load notes the
// addresses that the change concerns, and a Cut deletes the entries of their connections that the new program
// denies. Their next packets are judged as first packets.

// concerned returns the addresses of which a change may deny connections: those that a set of pods loses, those of
// pods that get or lose their own rules, and those of pods of this node in whose rules a chain or a set of ranges
// changes. A set that only grows denies nothing if only accepting rules use it. So if a pod starts on another node,
// concerned returns no address.
func (w *wanted) concerned(t touched) map[netip.Addr]bool {
	addrs, parts, against := make(map[netip.Addr]bool), maps.Clone(t.chains), w.against()
	for set, list := range t.removed {
		concern(set, list, addrs, parts)
	}
	for set, list := range t.added {
		if against[set] || isDispatch(set) {
			concern(set, list, addrs, parts)
		}
	}
	w.spread(parts)
	for a, pod := range w.pods {
		if parts[kindPod[policy.Ingress]+hash(pod)] || parts[kindPod[policy.Egress]+hash(pod)] {
			addrs[a] = true
		}
	}
	return addrs
}

// concern adds what a difference of a set concerns: addresses or, for a set of ranges, all that use it. No verdict depends on
// the set of local pods, so it concerns no address.
func concern(set string, list []element, addrs map[netip.Addr]bool, parts map[string]bool) {
	switch {
	case isNets(set) && len(list) > 0:
		parts[set] = true
	case isPods(set), isDispatch(set):
		for _, e := range list {
			addrs[e.first] = true
		}
	}
}

// against returns the sets that denying or passing rules use.
func (w *wanted) against() map[string]bool {
	sets := make(map[string]bool)
	for _, lines := range w.lines {
		for _, l := range lines {
			if l.verdict != expr.VerdictAccept {
				sets[l.pods], sets[l.nets] = true, true
			}
		}
	}
	return sets
}

// spread adds the chains that use one of these parts, directly or through others.
func (w *wanted) spread(parts map[string]bool) {
	for _, name := range w.byDepth() {
		if slices.ContainsFunc(w.lines[name], func(l line) bool { return parts[l.nets] || parts[l.chain] }) {
			parts[name] = true
		}
	}
}

// pods returns the addresses of the pods of this node that have a policy.
func pods(p *policy.Program) map[netip.Addr]bool {
	addrs := make(map[netip.Addr]bool)
	for i := range p.Pods {
		if policed(&p.Pods[i]) {
			for _, a := range p.Pods[i].Addresses {
				addrs[a] = true
			}
		}
	}
	return addrs
}
