// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Without a route to the container, ports are published without route_localnet, as by the reference. But an
// ADD that cannot find out whether there is a route fails.
func TestRouteThatCannotBeLookedUp(t *testing.T) {
	host, err := nl.Host("/proc")
	if err != nil {
		t.Fatal(err)
	}
	r := &plugin.Request{Call: &spec.Call{Verb: spec.Add}, Session: plugin.NewSession(nil)}
	find := func() error {
		p := &plan{addrs: []netip.Prefix{netip.MustParsePrefix("198.18.77.5/24")}, snat: true}
		return p.findRoute(r, &netstate.Env{Host: host})
	}
	if err := find(); err != nil {
		t.Error("without a route:", err)
	}
	host.Close()
	if err := find(); err == nil {
		t.Error("the route could not be looked up, and the ADD goes on")
	}
}
