// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmtest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// DiscoverNew implements cnm.Discoverer.
func (d *Driver) DiscoverNew(_ context.Context, in *cnm.DiscoveryRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if in.DiscoveryType != cnm.DiscoverNode {
		return fmt.Errorf("unknown discovery type %d", in.DiscoveryType)
	}
	if d.nodes == nil {
		d.nodes = map[string]bool{}
	}
	d.nodes[in.DiscoveryData.Address] = in.DiscoveryData.Self
	return nil
}

// DiscoverDelete implements cnm.Discoverer.
func (d *Driver) DiscoverDelete(_ context.Context, in *cnm.DiscoveryRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nodes, in.DiscoveryData.Address)
	return nil
}

// Nodes lists the discovered nodes, and marks its own with "self".
func (d *Driver) Nodes() (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range slices.Sorted(maps.Keys(d.nodes)) {
		if d.nodes[a] {
			a += " self"
		}
		list = append(list, a)
	}
	return list
}
