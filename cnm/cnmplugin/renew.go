// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
)

// outdated says whether the driver made the network for other pools than those that
// addresses come from now: pools of another IPAM configuration, or pools that were
// requested again after a GC gave them back. IPAM refuses another configuration while its
// pools are in use. A plugin may give addresses of several subnets, of which Docker knows
// the first; so with such a plugin only a network without attachments is outdated.
func (w *work) outdated(ctx context.Context, have *Network) (bool, error) {
	was := have.Request
	switch {
	case w.keeper != nil:
		v4, v6, err := w.pools(ctx, was.Options)
		return err == nil && same(v4, v6) != same(was.IPv4Data, was.IPv6Data), err
	case w.ipam != nil:
		now := append(derive(w.ipam.IPs, true, true), derive(w.ipam.IPs, false, true)...)
		if slices.Equal(prefixes(now), prefixes(slices.Concat(was.IPv4Data, was.IPv6Data))) {
			return false, nil
		}
		n, err := w.state.Members(w.r.Network, name)
		return n == 0, err
	}
	return false, nil
}

// pools returns the recorded pools. It asks the IPAM driver only if the record has none,
// lacks some, or is of another configuration.
func (w *work) pools(ctx context.Context, opts cnm.Options) (v4, v6 []cnm.IPAMData, err error) {
	if s := w.keeper.Given(); s != nil {
		v4, v6 = s.Data()
		return v4, v6, nil
	}
	return w.data(ctx, opts)
}

// same returns equal texts for equal pools.
func same(v4, v6 []cnm.IPAMData) string {
	return remote.Hash([][]cnm.IPAMData{append([]cnm.IPAMData{}, v4...), append([]cnm.IPAMData{}, v6...)})
}

func prefixes(data []cnm.IPAMData) (list []netip.Prefix) {
	for _, d := range data {
		list = append(list, d.Pool)
	}
	return list
}
