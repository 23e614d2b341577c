// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// datagram returns an IP packet with a UDP datagram.
func datagram(from, to netip.Addr, source, dest uint16, text string) []byte {
	udp := make([]byte, 8, 64)
	binary.BigEndian.PutUint16(udp, source)
	binary.BigEndian.PutUint16(udp[2:], dest)
	if udp = append(udp, text...); len(udp)%2 == 1 {
		udp = append(udp, ' ')
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], checksum(udp, pseudo(from, to, unix.IPPROTO_UDP, len(udp))))
	if from.Is6() {
		h := append([]byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 255}, from.AsSlice()...)
		return append(append(h, to.AsSlice()...), udp...)
	}
	h := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, from.AsSlice()...)
	h = append(h, to.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(h, 0))
	return append(h, udp...)
}

// raw sends a frame with an IP packet from the client's link, which may have NET_RAW.
func (f *forger) raw(mac net.HardwareAddr, tags, packet []byte) {
	f.t.Helper()
	proto := []byte{8, 0}
	if packet[0]>>4 == 6 {
		proto = []byte{0x86, 0xdd}
	}
	frame := append(append([]byte{}, mac...), 2, 0, 0, 0, 0, 7)
	frame = append(append(append(frame, tags...), proto...), packet...)
	must(f.t, f.client.Do(func() error {
		l, err := f.client.Link("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6})
	}))
}

// ear hears what its house gets at a link, whatever the address. It sees frames before any firewall of its house,
// and for the node it listens as a program does.
type ear struct {
	t    *testing.T
	conn net.PacketConn
}

func (f *forger) ear(h *house, port string) ear {
	e := ear{t: f.t.(*testing.T)}
	must(f.t, h.Do(func() (err error) { e.conn, err = net.ListenPacket("udp", ":"+port); return err }))
	f.t.Cleanup(func() { e.conn.Close() }) //nolint:errcheck // a test
	return e
}

// hears says whether a frame with this text comes. For one that is wanted it waits as long as a busy machine needs.
func (e ear) hears(text string, wanted bool) bool {
	e.t.Helper()
	patience := 300 * time.Millisecond
	if wanted {
		patience = 5 * time.Second
	}
	must(e.t, e.conn.SetReadDeadline(time.Now().Add(patience)))
	for b := make([]byte, 64); ; {
		n, _, err := e.conn.ReadFrom(b)
		if err != nil || n >= len(text) && string(b[:len(text)]) == text {
			return err == nil
		}
	}
}

func (h *house) mac(t testing.TB, link string) net.HardwareAddr {
	t.Helper()
	l, err := h.Link(link)
	must(t, err)
	return l.Attrs().HardwareAddr
}

func broadcastMAC() net.HardwareAddr { return net.HardwareAddr{255, 255, 255, 255, 255, 255} }

// Packets from the unspecified address, which no policy judges, do not reach the pod's node.
func TestNoSource(t *testing.T) {
	f := newForger(t)
	e := f.ear(f.node, "81")
	mac := f.node.mac(t, "v0")
	sends := map[string]func(text string){
		"::": func(text string) {
			f.raw(mac, nil, datagram(netip.IPv6Unspecified(), netip.MustParseAddr("fd09::1"), 1111, 81, text))
		},
		"0.0.0.0": func(text string) {
			f.raw(broadcastMAC(), nil, datagram(netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), 1111, 81, text))
		},
	}
	f.load(toB)
	for from, send := range sends {
		if send("before " + from); !e.hears("before "+from, true) {
			t.Errorf("a datagram from %s is not heard although no source is checked", from)
		}
	}
	f.attach()
	f.load(toB)
	for from, send := range sends {
		if send("after " + from); e.hears("after "+from, false) {
			t.Errorf("an isolated pod reaches its node from %s", from)
		}
	}
}

// sides closes the client's and the server's port as ADDs do.
func (b *bridged) sides(client, server [2]bool) {
	b.t.Helper()
	c, _ := closureOf("a", addrs("10.3.0.1", "fd03::1")...)
	c.Port, c.Close = "v0", client
	s, _ := closureOf("b", addrs("10.3.0.2", "fd03::2")...)
	s.Port, s.Close = "v1", server
	must(b.t, b.node.Do(func() error {
		for _, a := range []Closure{c, s} {
			Reopen(b.enforcer.fw, a)
			must(b.t, b.enforcer.fw.Commit(b.t.Context()))
			Close(b.enforcer.fw, a, false)
		}
		return b.enforcer.fw.Commit(b.t.Context())
	}))
}

type unjudgedFrame struct {
	name         string
	mac          net.HardwareAddr
	tags, packet []byte
	listener     ear
	text         string
}

// unjudged are frames of the client that the table inet does not judge.
func (b *bridged) unjudged(node, server ear) (list []unjudgedFrame) {
	a := netip.MustParseAddr
	link := a("fe80::a")
	toServer, toNode := b.server.mac(b.t, "eth0"), b.node.mac(b.t, "br0")
	all := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	for _, f := range []struct {
		name     string
		mac      net.HardwareAddr
		tags     []byte
		from, to netip.Addr
		at       ear
	}{
		{"from :: to the node", toNode, nil, netip.IPv6Unspecified(), a("fd03::fe"), node},
		{"link-local to the node", toNode, nil, link, a("fe80::fe"), node},
		{"link-local to a pod", toServer, nil, link, a("fe80::b"), server},
		{"multicast", all, nil, a("fd03::1"), a("ff02::1"), server},
		{"multicast to one MAC", toServer, nil, a("fd03::1"), a("ff02::1"), server},
		{"broadcast", broadcastMAC(), nil, a("10.3.0.1"), a("255.255.255.255"), server},
		{"a priority tag", toServer, []byte{0x81, 0, 0, 0}, a("10.3.0.1"), a("10.3.0.2"), server},
		{"a priority tag of a provider", toServer, []byte{0x88, 0xa8, 0, 0}, a("10.3.0.1"), a("10.3.0.2"), server},
	} {
		list = append(list, unjudgedFrame{f.name, f.mac, f.tags, datagram(f.from, f.to, 1111, 81, f.name), f.at, f.name})
	}
	return list
}

// No policy judges some frames on a bridge. A pod that is closed for egress cannot send them, and a pod that is
// closed for ingress does not receive them. Frames with VLAN tags never pass.
func TestWhatNoPolicyJudges(t *testing.T) {
	b := newBridged(t)
	b.address(b.node, "br0", "fe80::fe/64")
	b.address(b.server, "eth0", "fe80::b/64")
	node, server := b.ear(b.node, "81"), b.ear(b.server, "81")
	frames := b.unjudged(node, server)
	for _, f := range frames {
		if b.raw(f.mac, f.tags, f.packet); !f.listener.hears(f.text, true) {
			t.Errorf("%s: is not heard although nothing is checked", f.name)
		}
	}
	never := map[string]bool{"from :: to the node": true, "a priority tag": true, "a priority tag of a provider": true}
	local := map[string]bool{"link-local to the node": true, "link-local to a pod": true}
	for _, c := range []struct{ egress, ingress bool }{{false, false}, {true, false}, {false, true}} {
		b.sides([2]bool{policy.Egress: c.egress}, [2]bool{policy.Ingress: c.ingress})
		for _, f := range frames {
			want := !never[f.name] && !(c.egress && local[f.name]) && !(c.ingress && f.name != "link-local to the node")
			if f.listener.conn == server.conn && c.egress && !local[f.name] {
				continue // from the pod's own address: the table inet judges
			}
			if b.raw(f.mac, f.tags, f.packet); f.listener.hears(f.text, want) != want {
				t.Errorf("%+v: %s: passes: %v", c, f.name, !want)
			}
		}
	}
	b.neighbours()
}

// neighbours checks that closed pods find each other, and that the IP tables decide about the rest.
func (b *bridged) neighbours() {
	b.t.Helper()
	b.sides([2]bool{policy.Egress: true}, [2]bool{policy.Ingress: true})
	for _, h := range []*house{b.client, b.server, b.node} {
		must(b.t, h.Do(func() error { return exec.Command("ip", "neigh", "flush", "all").Run() }))
	}
	must(b.t, b.node.Do(func() error { // so that only the table bridge decides
		for _, key := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
			if err := os.WriteFile("/proc/sys/net/bridge/"+key, []byte("0"), 0o600); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		return nil
	}))
	if !b.passes("fd03::1", "fd03::2", "fd03::2") || !b.passes("10.3.0.1", "10.3.0.2", "10.3.0.2") {
		b.t.Error("closed pods do not find each other")
	}
}

// The agent isolates the ports of pods that a policy selects, and opens them when none does.
func TestPortsFollowPolicies(t *testing.T) {
	f := newForger(t)
	a, key := closureOf("a", addrs("10.1.1.1", "fd01::1:1")...)
	a.Port = "v7"
	known := map[netip.Addr]owner.Key{a.Addrs[0]: key, a.Addrs[1]: key}
	for _, c := range []struct {
		policies []string
		in, out  bool
	}{{[]string{toB}, false, true}, {nil, false, false}, {[]string{fromC, toB}, false, true}, {[]string{`shop/in {"podSelector":{"matchLabels":{"pod":"a"}}}`}, true, false}} {
		f.enforcer.Attach([]Closure{a})
		program := policy.Compile(shop(t, c.policies...))
		must(t, f.node.Do(func() error { return f.enforcer.Load(t.Context(), program, known) }))
		var have []nft.Element
		must(t, f.node.Do(func() (err error) {
			have, err = f.enforcer.fw.Find(nft.PortClosed(0, "v7", ""), nft.PortClosed(1, "v7", ""))
			return err
		}))
		got := [2]bool{}
		for _, e := range have {
			got[0], got[1] = got[0] || e.Set == nft.SetPortIn, got[1] || e.Set == nft.SetPortOut
		}
		if got != [2]bool{c.in, c.out} {
			t.Errorf("with %q, the port is closed: %v", c.policies, got)
		}
	}
}
