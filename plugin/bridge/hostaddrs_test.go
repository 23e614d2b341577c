// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// IPAM gives a container an address that the host has on the bridge, or would get there.
func TestAddressOfTheHost(t *testing.T) {
	for name, conf := range map[string]string{
		"its own gateway":     `"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.9.0.2/24", "gateway": "10.9.0.2"}]}`,
		"the gateway of IPv6": `"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "fd09::1/64"}]}`,
		"with forceAddress":   `"isGateway": true, "forceAddress": true, "ipam": {"type": "static", "addresses": [{"address": "10.9.0.1/24"}]}`,
		"the bridge's":        endpointtest.Static("10.9.0.1/24"),
	} {
		t.Run(name, func(t *testing.T) {
			w := endpointtest.New(t, &Plugin, &static.Plugin)
			first := w.Pod("first", `"bridge": "tbr0", "isGateway": true, `+endpointtest.Static("10.9.0.5/24"))
			w.Cleanup(func() { w.Host.Delete("tbr0") })
			first.Add()
			second := w.Pod("second", `"bridge": "tbr0", `+conf)
			err := second.Do(spec.Add)
			var refused *spec.Error
			if !errors.As(err, &refused) || refused.Code != spec.CodeInvalidConfig {
				t.Errorf("ADD: %v, want code %d", err, spec.CodeInvalidConfig)
			}
			w.Fails(err, "the host has it on tbr0")
			endpointtest.Must(t, first.Do(spec.Check))
		})
	}
}

// A container may get an address that the bridge has until forceAddress replaces it.
func TestAddressThatTheHostGivesUp(t *testing.T) {
	c := &Conf{IsGateway: true, ForceAddress: true, Bridge: "tbr0"}
	ips := []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.0.5/24"), Gateway: netip.MustParseAddr("10.9.0.1")}}
	if err := c.refuseHostAddrs(nil, ips); err != nil {
		t.Error(err)
	}
}
