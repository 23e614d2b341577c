// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// The routes of the agent and routes that refuse stay. Another program's route to the same prefix would take the packets
// of an encrypted network to its next hop: ADD refuses, and does not touch it.
func TestUnreachableBesideOtherRoutes(t *testing.T) {
	for _, c := range []struct {
		name, dst string
		there     *netlink.Route // nil: none
		refuses   bool
	}{
		{name: "none", dst: "10.9.0.0/16"},
		{name: "none6", dst: "fd09::/48"},
		{name: "foreign", dst: "10.9.0.0/16", there: &netlink.Route{Protocol: unix.RTPROT_STATIC}, refuses: true},
		{name: "foreign6", dst: "fd09::/48", there: &netlink.Route{Protocol: unix.RTPROT_STATIC}, refuses: true},
		{name: "preferred6", dst: "fd09::/48", there: &netlink.Route{Protocol: unix.RTPROT_STATIC, Priority: 100}, refuses: true},
		{name: "later", dst: "10.9.0.0/16", there: &netlink.Route{Protocol: unix.RTPROT_STATIC, Priority: 100}},
		{name: "later6", dst: "fd09::/48", there: &netlink.Route{Protocol: unix.RTPROT_STATIC, Priority: 2000}},
		{name: "agent", dst: "10.9.0.0/16", there: &netlink.Route{Protocol: HostsProtocol}},
		{name: "refusing", dst: "10.9.0.0/16", there: &netlink.Route{Protocol: unix.RTPROT_STATIC, Type: unix.RTN_BLACKHOLE}},
		{name: "refusing6", dst: "fd09::/48", there: &netlink.Route{Protocol: unix.RTPROT_STATIC, Type: unix.RTN_PROHIBIT}},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := newSandbox(t, "un"+c.name)
			must(t, host.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "up0"}}))
			up, err := host.Link("up0")
			must(t, err)
			must(t, host.LinkSetUp(up))
			dst := netip.MustParsePrefix(c.dst)
			if r := c.there; r != nil {
				r.Dst = nl.IPNet(dst)
				if r.Type == 0 {
					r.LinkIndex = up.Attrs().Index
				}
				must(t, host.RouteAdd(r))
			}
			_, err = Unreachable{Dst: dst, Protocol: HostsProtocol}.Ensure(t.Context(), &Env{Host: host})
			if c.refuses != (err != nil) {
				t.Errorf("error %v", err)
			}
			if c.refuses && err != nil && !strings.Contains(err.Error(), "ip route del "+c.dst+" dev up0") {
				t.Errorf("the error does not say what to do: %v", err)
			}
		})
	}
}
