// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net"
	"testing"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// TestCompile compares, as text, the state for a configuration and IPAM's answer.
func TestCompile(t *testing.T) {
	endpointtest.Goldens(t, &Plugin, func(r *plugin.Request, pair *endpoint.Pair, ipam *spec.Result) (netstate.State, *spec.Result, error) {
		c := plugin.ConfOf[Conf](r)
		return compile(input{
			conf: c, ipam: ipam, pair: pair, bridgeMAC: net.HardwareAddr{2, 0, 0, 0, 0, 3}, network: "net",
			comment: "abcdefghijklmno net/c/eth0",
		})
	})
}
