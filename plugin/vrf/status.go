// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
)

// status reports whether the kernel supports VRFs (CONFIG_NET_VRF, Linux 4.3).
func status(_ context.Context, r *plugin.Request) error { return endpoint.KernelMakes(r, name) }
