// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unreachable returns an error of ICMP: the port to which a packet was sent is closed.
func unreachable(from netip.Addr, about []byte) []byte {
	to := netip.AddrFrom4([4]byte(about[12:16]))
	if from.Is6() {
		to = netip.AddrFrom16([16]byte(about[8:24]))
		icmp := append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, about...)
		binary.BigEndian.PutUint16(icmp[2:], checksum(icmp, pseudo(from, to, unix.IPPROTO_ICMPV6, len(icmp))))
		h := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 64}, from.AsSlice()...)
		return append(append(h, to.AsSlice()...), icmp...)
	}
	icmp := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, about...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp, 0))
	h := append([]byte{0x45, 0, 0, byte(20 + len(icmp)), 0, 0, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0}, from.AsSlice()...)
	h = append(h, to.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(h, 0))
	return append(h, icmp...)
}

// ends reports whether an error that the client sends ends a connection of another house.
func (f *forger) ends(h *house, mac net.HardwareAddr, by, from, to string) bool {
	f.t.Helper()
	source, dest := netip.MustParseAddr(from), netip.MustParseAddr(to)
	var conn *net.UDPConn
	must(f.t, h.Do(func() (err error) {
		conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(dest, 99)))
		return err
	}))
	defer conn.Close() //nolint:errcheck // a test
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	for range 10 {
		if _, err := conn.Write([]byte("packet")); err != nil {
			return true
		}
		f.raw(mac, nil, unreachable(netip.MustParseAddr(by), datagram(source, dest, port, 99, "packet")))
		time.Sleep(30 * time.Millisecond)
	}
	return false
}

// A pod does not end connections of others, or of the node, by errors about packets that were not sent to it. The
// kernel takes such an error for a part of the connection, so policies let it pass.
func TestForgedErrors(t *testing.T) {
	f := newForger(t)
	f.address(f.client, "lo", "172.31.0.9/32")
	f.node.route(t, netip.MustParseAddr("172.31.0.9"), "v0")
	f.address(f.node, "link", "10.8.0.1/24", "fd08::1/64")
	f.address(f.nodes[1], "link", "10.8.0.2/24", "fd08::2/64")
	for _, a := range addrs("10.1.1.2", "fd01::1:2") {
		f.nodes[1].route(t, a, "link")
	}
	f.ear(f.nodes[1], "99")
	f.ear(f.client, "99")
	none := []string{`shop/none {"podSelector":{},"policyTypes":["Ingress"]}`, `shop/a {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Egress"]}`}
	mac := f.node.mac(t, "v0")
	for _, checked := range []bool{false, true} {
		if checked {
			f.attach()
		}
		f.load(none...)
		for _, c := range [][3]string{{"10.1.1.1", "10.1.1.2", "10.8.0.2"}, {"fd01::1:1", "fd01::1:2", "fd08::2"}} {
			if f.ends(f.server, mac, c[0], c[1], c[2]) == checked {
				t.Errorf("an error of %s ends a connection from %s to %s: %v", c[0], c[1], c[2], checked)
			}
		}
		f.load()
		for _, c := range [][3]string{{"10.1.1.1", "10.8.0.1", "10.8.0.2"}, {"fd01::1:1", "fd08::1", "fd08::2"}} {
			if f.ends(f.node, mac, c[0], c[1], c[2]) == checked {
				t.Errorf("an error of %s ends a connection of the node from %s to %s: %v", c[0], c[1], c[2], checked)
			}
		}
		for _, c := range [][3]string{{"10.1.1.1", "10.1.1.2", "10.1.1.1"}, {"fd01::1:1", "fd01::1:2", "fd01::1:1"}} {
			if !f.ends(f.server, mac, c[0], c[1], c[2]) {
				t.Errorf("checked: %v: an error of %s about a packet to it does not pass", checked, c[0])
			}
		}
	}
	if f.ends(f.server, mac, "10.1.1.1", "10.1.1.2", "172.31.0.9") {
		t.Error("an error about a packet to a network behind the pod passes although nothing came from there")
	}
	if !f.passes("172.31.0.9", "10.1.1.2", "10.1.1.2") || !f.ends(f.server, mac, "10.1.1.1", "10.1.1.2", "172.31.0.9") {
		t.Error("an error of a pod about a packet to a network that it routes does not pass")
	}
}

// At a port of a bridge, too.
func TestForgedErrorsOnABridge(t *testing.T) {
	b := newBridged(t)
	b.ear(b.node, "99")
	b.ear(b.client, "99")
	mac := b.server.mac(t, "eth0")
	for _, checked := range []bool{false, true} {
		if checked {
			b.sides([2]bool{}, [2]bool{})
		}
		for _, c := range [][2]string{{"10.3.0.1", "10.3.0.2"}, {"fd03::1", "fd03::2"}} {
			node := map[string]string{"10.3.0.1": "10.3.0.254", "fd03::1": "fd03::fe"}[c[0]]
			if b.ends(b.server, mac, c[0], c[1], node) == checked {
				t.Errorf("an error of %s ends a connection from %s to %s: %v", c[0], c[1], node, checked)
			}
			if !b.ends(b.server, mac, c[0], c[1], c[0]) {
				t.Errorf("checked: %v: an error of %s about a packet to it does not pass", checked, c[0])
			}
		}
	}
}
