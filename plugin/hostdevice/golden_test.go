// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// TestCompile compares the state of a configuration and IPAM's answer, as text.
func TestCompile(t *testing.T) {
	endpointtest.Goldens(t, &Plugin, func(r *plugin.Request, pair *endpoint.Pair, ipam *spec.Result) (netstate.State, *spec.Result, error) {
		c := plugin.ConfOf[Conf](r)
		m := move{device: &record.Device{Name: c.Device}, ifName: pair.IfName, netns: pair.NetNS, mac: pair.MAC}
		return single(r, c, m).Compile(pair.IfName, pair.NetNS, ipam)
	})
}
