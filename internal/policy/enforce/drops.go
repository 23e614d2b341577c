// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Drop is how many packets one policy denied in one direction since its chain exists: by a rule, or
// because it isolates a pod and no policy allowed the packet. If several policies isolate a pod, each
// counts the packet. Policy is as in policy.Chain. It is empty for packets that were denied because
// the labels of a pod are not known yet, because an ADD closed the pod, or because a pod used an address
// that is not its own; their direction has no meaning.
type Drop struct {
	Policy         string
	Direction      policy.Direction
	Packets, Bytes uint64
}

// Drops returns the counters of the loaded program, sorted by policy and direction. It returns none if
// no program is loaded.
func (e *Enforcer) Drops() ([]Drop, error) {
	if e.loaded == nil {
		return nil, nil
	}
	counters, err := e.fw.PolicyCounters()
	if err != nil {
		return nil, fmt.Errorf("read counters of network policies: %w", err)
	}
	sums := make(map[Drop]*Drop) // by policy and direction
	names := e.counterNames()
	for _, c := range counters {
		key, ok := names[c.Name]
		if !ok || key == (Drop{}) && c.Name != countUnknown && c.Packets == 0 {
			continue
		}
		if sums[key] == nil {
			sums[key] = &Drop{Policy: key.Policy, Direction: key.Direction}
		}
		sums[key].Packets += c.Packets
		sums[key].Bytes += c.Bytes
	}
	drops := make([]Drop, 0, len(sums))
	for _, d := range sums {
		drops = append(drops, *d)
	}
	slices.SortFunc(drops, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Direction, b.Direction))
	})
	return drops, nil
}

// counterNames returns what each counter is for. A policy that uses names of ports has several.
func (e *Enforcer) counterNames() map[string]Drop {
	names := map[string]Drop{countUnknown: {}, countClosed: {}, nft.CountForged: {}}
	for i := range e.loaded.Chains {
		c := &e.loaded.Chains[i]
		names[chainOf(c)] = Drop{Policy: c.Policy, Direction: c.Direction}
	}
	return names
}
