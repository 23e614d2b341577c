// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// The containers of each host are another network. Isolated networks do not reach each other over
// hosts, whatever way their packets take. They reach a network that is not isolated.
func TestIsolatedNetworks(t *testing.T) {
	for _, transport := range []Transport{Routes, VXLAN} {
		t.Run(string(transport), func(t *testing.T) {
			l := newLab(t)
			u := setup{transport, "46"}
			hosts := l.hosts[:3]
			apply := func(isolated ...int) {
				t.Helper()
				for _, h := range hosts {
					self := u.self(h)
					self.Subnets = nil
					for _, p := range hosts {
						for _, text := range []string{fmt.Sprintf("10.40.%d.0/24", p.number), fmt.Sprintf("fd40:%d::/64", p.number)} {
							x := Subnet{Network: fmt.Sprint("net", p.number), Prefix: netip.MustParsePrefix(text)}
							x.Block = x.Prefix.Bits()
							for _, n := range isolated {
								x.Isolated = x.Isolated || n == p.number
							}
							self.Subnets = append(self.Subnets, x)
						}
					}
					h.do(func() error { return h.mesh.Apply(ctx, self, u.peers(h, hosts...)) })
				}
			}
			reaches := func(from, to *host, want bool) {
				t.Helper()
				for _, addr := range []string{fmt.Sprintf("10.40.%d.5", to.number), fmt.Sprintf("fd40:%d::5", to.number)} {
					listener := to.container.listen(t, net.JoinHostPort(addr, "0"))
					within := patience
					if !want {
						within = 300 * time.Millisecond
					}
					c, err := from.container.dial(listener.Addr().String(), within)
					if err == nil {
						c.Close() //nolint:errcheck // a test
					}
					if (err == nil) != want {
						t.Errorf("from host %d to %s: %v", from.number, addr, err)
					}
				}
			}
			apply()
			reaches(hosts[0], hosts[1], true)
			apply(hosts[0].number, hosts[1].number)
			reaches(hosts[0], hosts[1], false)
			reaches(hosts[1], hosts[0], false)
			reaches(hosts[0], hosts[2], true)
			reaches(hosts[2], hosts[1], true)
			hosts[0].sh("nft flush set inet patchbay divided4_24; nft flush set inet patchbay divided6_64")
			apply(hosts[0].number, hosts[1].number) // as after a change in the kernel
			reaches(hosts[0], hosts[1], false)
			apply(hosts[0].number)
			reaches(hosts[0], hosts[1], true)
		})
	}
}
