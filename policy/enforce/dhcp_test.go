// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net"
	"net/netip"
	"testing"
)

// A closed pod at a bridge keeps its address of DHCPv6: it asks from its link-local address, and the server behind
// another port answers to it.
func TestClosedPodKeepsDHCPv6(t *testing.T) {
	b := newBridged(t)
	b.address(b.server, "eth0", "fe80::b/64")
	server, client := b.ear(b.server, "547"), b.ear(b.server, "546")
	link, to := netip.MustParseAddr("fe80::a"), b.server.mac(t, "eth0")
	relays := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	ask := datagram(link, netip.MustParseAddr("fe80::b"), 546, 547, "renew")
	all := datagram(link, netip.MustParseAddr("ff02::1"), 546, 547, "solicit")
	answer := datagram(link, netip.MustParseAddr("fe80::b"), 547, 546, "reply")
	b.sides([2]bool{true, true}, [2]bool{})
	if b.raw(to, nil, ask); !server.hears("renew", true) {
		t.Error("a closed client does not reach the server")
	}
	if b.raw(relays, nil, all); !server.hears("solicit", true) {
		t.Error("a closed client does not find the server")
	}
	b.sides([2]bool{}, [2]bool{true, true})
	if b.raw(to, nil, answer); !client.hears("reply", true) {
		t.Error("the server's answer does not reach a closed client")
	}
}
