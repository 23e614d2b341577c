// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net"
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// A pod that may not send to its node does not reach it by broadcast or multicast, either.
func TestNodeAmongEverybody(t *testing.T) {
	f := newForger(t)
	f.attach()
	f.address(f.node, "v0", "10.76.0.1/32") // then the link is in the group of all hosts
	f.address(f.node, "v1", "10.77.0.5/24", "fd77::5/64")
	four, six := ear{t: t}, f.ear(f.node, "81")
	must(t, f.node.Do(func() (err error) { four.conn, err = net.ListenPacket("udp4", ":82"); return err }))
	defer four.conn.Close() //nolint:errcheck // a test
	mac, all6 := f.node.mac(t, "v0"), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	for _, denied := range []bool{false, true} {
		s := shop(t)
		if denied {
			add(t, s, `wall {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"nodes":{}}]}]}`)
		}
		must(t, f.node.Do(func() (err error) {
			if s.Local, err = NodeReach(); err == nil {
				err = f.enforcer.Load(t.Context(), policy.Compile(s), nil)
			}
			return err
		}))
		for _, c := range []struct {
			mac      net.HardwareAddr
			from, to string
		}{
			{mac, "10.1.1.1", "10.77.0.5"},
			{mac, "10.1.1.1", "10.77.0.255"},
			{broadcastMAC(), "10.1.1.1", "255.255.255.255"},
			{broadcastMAC(), "10.1.1.1", "224.0.0.1"},
			{mac, "fd01::1:1", "fd77::5"},
			{mac, "fd01::1:1", "fd77::"},
			{mac, "fd01::1:1", "fe80::b"},
			{all6, "fd01::1:1", "ff02::1"},
		} {
			text := c.to + map[bool]string{false: " open", true: " denied"}[denied]
			at, port, from := six, uint16(81), netip.MustParseAddr(c.from)
			if from.Is4() {
				at, port = four, 82
			}
			f.raw(c.mac, nil, datagram(from, netip.MustParseAddr(c.to), 1111, port, text))
			if heard := at.hears(text, !denied); heard == denied {
				t.Errorf("%s: heard: %v", text, heard)
			}
		}
	}
}
