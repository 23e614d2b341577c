// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

func prefixes(text string) (out []netip.Prefix) {
	for _, f := range strings.Fields(text) {
		out = append(out, netip.MustParsePrefix(f))
	}
	return out
}

// route makes a route to dst through a gateway, with changes.
func route(dst, gw string, more ...func(*state.Route)) state.Route {
	r := state.Route{Dst: netip.MustParsePrefix(dst), Table: unix.RT_TABLE_MAIN}
	if gw != "" {
		r.GW = netip.MustParseAddr(gw)
	}
	for _, fn := range more {
		fn(&r)
	}
	return r
}

func kernels(r *state.Route) { r.Kernel = true }

func TestTold(t *testing.T) {
	bridge := &state.Snapshot{
		Addrs:  prefixes("10.1.0.5/24 10.2.0.5/24 fd01::5/64"),
		Routes: []state.Route{route("10.1.0.0/24", "", kernels), route("10.2.0.0/24", "", kernels), route("fd01::/64", "", kernels), route("0.0.0.0/0", "10.1.0.1"), route("::/0", "fd01::1"), route("10.9.0.0/16", "10.1.0.7"), route("10.8.0.0/16", "10.2.0.7")},
	}
	ptp := &state.Snapshot{
		Addrs:  prefixes("10.1.0.5/24 fd01::5/64"),
		Routes: []state.Route{route("10.1.0.1/32", ""), route("10.1.0.0/24", "10.1.0.1"), route("0.0.0.0/0", "10.1.0.1"), route("fd01::1/128", ""), route("fd01::/64", "fd01::1")},
	}
	zero := &state.Snapshot{Addrs: prefixes("10.1.0.5/32"), Routes: []state.Route{route("0.0.0.0/0", "169.254.1.1", func(r *state.Route) { r.OnLink = true })}}
	none := &state.Snapshot{Addrs: prefixes("10.1.0.5/24"), Routes: []state.Route{route("10.1.0.0/24", "", kernels), route("10.5.0.0/16", "", func(r *state.Route) { r.Table = 100 })}}
	l3 := &state.Snapshot{Addrs: prefixes("10.1.0.5/32"), Routes: []state.Route{route("0.0.0.0/0", "")}}
	for name, c := range map[string]struct {
		s          *state.Snapshot
		internal   bool
		bridge     bool
		addrs, ans string
	}{
		"bridge": {bridge, false, false, "10.1.0.5/24 fd01::5/64",
			`{"Gateway":"10.1.0.1","GatewayIPv6":"fd01::1","StaticRoutes":[{"Destination":"10.9.0.0/16","RouteType":0,"NextHop":"10.1.0.7"}]}`},
		"internal": {bridge, true, false, "10.1.0.5/24 fd01::5/64",
			`{"Gateway":"","GatewayIPv6":"","StaticRoutes":[{"Destination":"10.9.0.0/16","RouteType":0,"NextHop":"10.1.0.7"}],"DisableGatewayService":true}`},
		"ptp": {ptp, false, false, "10.1.0.5/32 fd01::5/128",
			`{"Gateway":"10.1.0.1","GatewayIPv6":"","StaticRoutes":[{"Destination":"10.1.0.1/32","RouteType":1},{"Destination":"fd01::1/128","RouteType":1},{"Destination":"10.1.0.0/24","RouteType":0,"NextHop":"10.1.0.1"},{"Destination":"fd01::/64","RouteType":0,"NextHop":"fd01::1"}]}`},
		"gateway that no address reaches": {zero, false, false, "10.1.0.5/32 invalid Prefix",
			`{"Gateway":"169.254.1.1","GatewayIPv6":"","StaticRoutes":[{"Destination":"169.254.1.1/32","RouteType":1}]}`},
		"no default route": {none, false, false, "10.1.0.5/24 invalid Prefix", `{"Gateway":"","GatewayIPv6":"","DisableGatewayService":true}`},
		"docker_gwbridge":  {none, false, true, "10.1.0.5/24 invalid Prefix", `{"Gateway":"","GatewayIPv6":""}`},
		"default route without a gateway": {l3, false, false, "10.1.0.5/32 invalid Prefix",
			`{"Gateway":"","GatewayIPv6":"","StaticRoutes":[{"Destination":"0.0.0.0/0","RouteType":1}]}`},
	} {
		v4, v6 := addresses(c.s)
		if got := v4.String() + " " + v6.String(); got != c.addrs {
			t.Errorf("%s: addresses %s, want %s", name, got, c.addrs)
		}
		if got := asJSON(joined(c.s, c.internal, c.bridge)); got != c.ans {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.ans)
		}
	}
}
