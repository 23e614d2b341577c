// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"strings"
	"testing"
)

// Over an uplink with a small MTU a tunnel carries IPv4. IPv6 does not fit, and the error says so. When the
// MTU changes while the tunnel exists, it follows.
func TestSmallUplink(t *testing.T) {
	for _, transport := range []Transport{VXLAN, WireGuard} {
		t.Run(string(transport), func(t *testing.T) {
			switch transport {
			case VXLAN:
				needVXLAN(t)
			case WireGuard:
				needWireGuard(t)
			case Routes, Auto:
			}
			l := newLab(t)
			h1, far, u := l.hosts[0], l.hosts[3], setup{transport, "4"}
			for _, mtu := range []int{1280, 1500, 600} {
				for _, h := range []*host{h1, far} {
					h.sh(fmt.Sprintf("ip link set eth0 mtu %d", mtu))
				}
				for _, h := range []*host{h1, far} {
					err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, h1, far)) })
					if mtu < 1330 && (err == nil || !strings.Contains(err.Error(), "and IPv6 needs 1280: raise the MTU of the uplink")) || mtu == 1500 && err != nil {
						t.Errorf("MTU %d, host %d: %v", mtu, h.number, err)
					}
				}
				if mtu == 1500 {
					talk(t, h1, far)
				}
				must(t, connect(t, h1.container, far.container, "10.40.4.5").echo(strings.Repeat("x", 1<<15))) // many segments, and few for an emulated machine that encrypts
				if routes := h1.sh("ip -6 route"); strings.Contains(routes, "fd40:4::/64") != (mtu == 1500) {
					t.Errorf("MTU %d:\n%s", mtu, routes)
				}
			}
		})
	}
}
