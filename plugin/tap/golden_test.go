// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// TestCompile compares the state of a configuration and IPAM's answer, as text.
func TestCompile(t *testing.T) {
	endpointtest.Goldens(t, &Plugin, func(r *plugin.Request, pair *endpoint.Pair, ipam *spec.Result) (netstate.State, *spec.Result, error) {
		c := plugin.ConfOf[Conf](r)
		mac := pair.MAC
		if c.mac != nil {
			mac = c.mac
		}
		return single(r, c, object(r, c, mac)).Compile(pair.IfName, pair.NetNS, ipam)
	})
}
