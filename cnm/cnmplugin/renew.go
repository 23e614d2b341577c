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

// outdated reports whether the driver made the network for other pools than the present ones.
// That is so if the configuration of IPAM has changed, or if a GC gave the pools back and they
// were requested again. IPAM itself refuses another configuration while its pools are in use. A
// CNI IPAM plugin may give addresses of several subnets, and Docker's protocol has only the
// first. So with such a plugin a network is outdated only if it has no attachments.
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

// same returns a text that is equal for equal pools.
func same(v4, v6 []cnm.IPAMData) string {
	return remote.Hash([][]cnm.IPAMData{append([]cnm.IPAMData{}, v4...), append([]cnm.IPAMData{}, v6...)})
}

func prefixes(data []cnm.IPAMData) (list []netip.Prefix) {
	for _, d := range data {
		list = append(list, d.Pool)
	}
	return list
}
