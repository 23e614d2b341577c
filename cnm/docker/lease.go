// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
)

// leased is the ipam section for an endpoint whose address our IPAM driver gave,
// nil for any other.
func (d *Driver) leased(*network, *state.Endpoint) (any, error) { return nil, nil }

// unbind leaves an endpoint's lease without it.
func (d *Driver) unbind(*state.Endpoint) {}

func (d *Driver) sweepLeases(context.Context) error { return nil }
