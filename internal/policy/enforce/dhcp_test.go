// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net"
	"net/netip"
	"testing"
)

// A closed pod at a bridge keeps its address of DHCPv6: it asks the server behind another port from its link-local address.
func TestClosedPodKeepsDHCPv6(t *testing.T) {
	b := newBridged(t)
	b.address(b.server, "eth0", "fe80::b/64")
	server := b.ear(b.server, "547")
	link, to := netip.MustParseAddr("fe80::a"), b.server.mac(t, "eth0")
	relays := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	ask := datagram(link, netip.MustParseAddr("fe80::b"), 546, 547, "renew")
	all := datagram(link, netip.MustParseAddr("ff02::1"), 546, 547, "solicit")
	b.sides([2]bool{true, true}, [2]bool{})
	if !b.asks(to, ask, server, "renew") {
		t.Error("a closed client does not reach the server")
	}
	if !b.asks(relays, all, server, "solicit") {
		t.Error("a closed client does not find the server")
	}
}

// once sends a packet, and reports whether it is heard.
func (b *bridged) once(mac net.HardwareAddr, packet []byte, at ear, text string) bool {
	b.t.Helper()
	b.raw(mac, nil, packet)
	return at.hears(text, false)
}

// asks sends a packet until it is heard, as a client of DHCP does (RFC 8415, 15): a busy machine may lose one.
func (b *bridged) asks(mac net.HardwareAddr, packet []byte, at ear, text string) bool {
	b.t.Helper()
	return eventually(func() bool { return b.once(mac, packet, at, text) })
}

// An answer of DHCP reaches a closed pod from a port where a server can be, and not from another pod, which would make itself
// the pod's gateway.
func TestClosedPodAndDHCPServers(t *testing.T) {
	b := newBridged(t)
	b.address(b.server, "eth0", "fe80::b/64")
	four, six := b.ear(b.server, "68"), b.ear(b.server, "546")
	answers := func(text string, wanted bool) {
		t.Helper()
		for e, packet := range map[ear][]byte{
			four: datagram(netip.MustParseAddr("10.3.0.1"), netip.MustParseAddr("255.255.255.255"), 67, 68, text),
			six:  datagram(netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fe80::b"), 547, 546, text),
		} {
			mac := broadcastMAC()
			if e == six {
				mac = b.server.mac(t, "eth0")
			}
			hears := b.asks
			if !wanted {
				hears = b.once
			}
			if hears(mac, packet, e, text) != wanted {
				t.Errorf("an answer of %s reaches a closed pod: %v (IPv6: %v)", text, !wanted, e == six)
			}
		}
	}
	b.sides([2]bool{}, [2]bool{true, true})
	answers("another pod", false)
	pod, _ := closureOf("a", addrs("10.3.0.1", "fd03::1")...)
	pod.Port = "v0"
	must(t, b.node.Do(func() error { Reopen(b.enforcer.fw, pod); return b.enforcer.fw.Commit(t.Context()) }))
	answers("a server", true)
}
