// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// Kernel is the kernel of a machine, with the routes that its agent applied last. All machines are on one link. It
// implements fabric.Mesh.
type Kernel struct {
	Routes map[netip.Prefix]netip.Addr
}

// Apply implements fabric.Mesh.
func (k *Kernel) Apply(_ context.Context, self mesh.Self, peers []mesh.Peer) error {
	facts := mesh.Observed{Reach: map[netip.Addr]mesh.Reach{}, MTU: 1500}
	for _, p := range peers {
		for _, a := range p.Underlay {
			facts.Reach[a] = mesh.Reach{Link: "eth0", OnLink: true}
		}
	}
	state, err := mesh.Compile(self, peers, facts)
	k.Routes = map[netip.Prefix]netip.Addr{}
	for _, r := range state.Routes {
		k.Routes[r.Dst] = r.Via
	}
	return err
}

// UplinkMTU implements fabric.Mesh.
func (*Kernel) UplinkMTU([]netip.Addr) (int, error) { return 1500, nil }

// Watch implements fabric.Mesh.
func (*Kernel) Watch(context.Context, func()) error { return nil }

// Probe implements fabric.Mesh.
func (*Kernel) Probe(context.Context, func()) error { return nil }

// Now returns a copy of the routes.
func (k *Kernel) Now() map[netip.Prefix]netip.Addr { return maps.Clone(k.Routes) }

// Stays checks the invariant of all agents: whatever the source of the other machines says, no route goes that leads
// to a machine in use. may says which routes may go.
func (k *Kernel) Stays(was map[netip.Prefix]netip.Addr, may func(block netip.Prefix, via netip.Addr) bool) error {
	for block, via := range was {
		if k.Routes[block] != via && !may(block, via) {
			return fmt.Errorf("it lost its route to %s by %s", block, via)
		}
	}
	return nil
}
