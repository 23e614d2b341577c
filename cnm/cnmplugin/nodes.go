// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
	"github.com/patchbay-net/patchbay/spec"
)

// nodes returns the nodes that the driver of a swarm gets, beginning with this node.
func (c *Conf) nodes() (list []cnm.DiscoveryData, err error) {
	if c.NodeAddress == "" && len(c.Nodes) == 0 {
		return nil, nil
	}
	if !c.EmulateSwarm || c.NodeAddress == "" {
		return nil, spec.Invalid("nodes goes with nodeAddress, and both with emulateSwarm")
	}
	for i, text := range append([]string{c.NodeAddress}, c.Nodes...) {
		a, err := netip.ParseAddr(text)
		if err != nil || slices.ContainsFunc(list, func(d cnm.DiscoveryData) bool { return d.Address == a.String() }) {
			return nil, spec.Invalid("node %.80q: want the addresses of different nodes", text)
		}
		d := cnm.DiscoveryData{Address: a.String(), Self: i == 0}
		if d.Self {
			d.BindAddress = d.Address
		}
		list = append(list, d)
	}
	return list, nil
}

// discover tells the driver which nodes have come and gone since the last call. It is no error
// if the driver does not implement the call.
func (w *work) discover(ctx context.Context) error {
	want, err := w.conf.nodes()
	if err != nil || slices.Equal(want, w.net.Nodes) {
		return err
	}
	for _, n := range w.net.Nodes {
		if !slices.Contains(want, n) {
			if err := remote.Answered(w.r, w.client.DiscoverDelete(ctx, discovered(n))); err != nil {
				return err
			}
		}
	}
	for _, n := range want {
		if !slices.Contains(w.net.Nodes, n) {
			if err := remote.Answered(w.r, w.client.DiscoverNew(ctx, discovered(n))); err != nil {
				return err
			}
		}
	}
	w.net.Nodes = want
	return w.saveNetwork()
}

func discovered(n cnm.DiscoveryData) *cnm.DiscoveryRequest {
	return &cnm.DiscoveryRequest{DiscoveryType: cnm.DiscoverNode, DiscoveryData: n}
}
