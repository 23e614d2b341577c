// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forged is a VXLAN packet that some program makes.
type forged struct {
	vni  uint32
	to   net.HardwareAddr // inner destination
	tag  []byte           // of a VLAN, behind the inner Ethernet addresses
	src  string           // inner source
	dst  string           // inner destination
	text string
}

const forgedPort = 7777

// bytes returns the payload of the outer UDP packet.
func (f forged) bytes() []byte {
	src, dst := netip.MustParseAddr(f.src), netip.MustParseAddr(f.dst)
	b := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, f.vni<<8)
	b = append(append(b, f.to...), 2, 0, 0, 0, 0, 9)
	b = append(b, f.tag...)
	udp := binary.BigEndian.AppendUint16(nil, 5555)
	udp = binary.BigEndian.AppendUint16(udp, forgedPort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(f.text)))
	udp = append(append(udp, 0, 0), f.text...)
	if src.Is4() {
		h := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
		binary.BigEndian.PutUint16(h[10:], onesSum(h))
		return append(append(append(b, 8, 0), h...), udp...)
	}
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, byte(len(udp)), 0, 0, 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(udp[6:], onesSum(append(pseudo, udp...)))
	h := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	return append(append(append(b, 0x86, 0xdd), h...), udp...)
}

func onesSum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// hears listens in a container at the port of forged packets. The result reports whether a text has come.
func (s *space) hears(t *testing.T) func(text string) bool {
	t.Helper()
	var c net.PacketConn
	must(t, s.conn.Do(func() (err error) { c, err = net.ListenPacket("udp", fmt.Sprintf(":%d", forgedPort)); return err }))
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // a test
	return func(text string) bool {
		t.Helper()
		buf := make([]byte, 100)
		for until := time.Now().Add(200 * time.Millisecond); ; {
			must(t, c.SetReadDeadline(until))
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return false
			}
			if string(buf[:n]) == text {
				return true
			}
		}
	}
}

// sends sends a packet to a host's tunnel.
func (s *space) sends(t *testing.T, from, to string, payload []byte) {
	t.Helper()
	s.throws(t, from, to, DefaultPort, payload)
}

// throws sends a datagram. The kernel chooses its source address, or it is from, which requires CAP_NET_RAW.
func (s *space) throws(t *testing.T, from, to string, port int, payload []byte) {
	t.Helper()
	must(t, s.conn.Do(func() error {
		fd, err := unix.Socket(family(to), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		if from != "" {
			if err := unix.SetsockoptInt(fd, transparent(to), transparentOption(to), 1); err != nil {
				return err
			}
			if err := unix.Bind(fd, sockaddr(from, 6666)); err != nil {
				return err
			}
		}
		return unix.Sendto(fd, payload, 0, sockaddr(to, port))
	}))
}

func family(addr string) int {
	if netip.MustParseAddr(addr).Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func transparent(addr string) int {
	if netip.MustParseAddr(addr).Is4() {
		return unix.SOL_IP
	}
	return unix.SOL_IPV6
}

func transparentOption(addr string) int {
	if netip.MustParseAddr(addr).Is4() {
		return unix.IP_TRANSPARENT
	}
	return unix.IPV6_TRANSPARENT
}

func sockaddr(addr string, port int) unix.Sockaddr {
	a := netip.MustParseAddr(addr)
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

// Only a peer can send into a tunnel, and only from its own addresses.
func TestForgedTunnel(t *testing.T) {
	needVXLAN(t)
	for _, underlay := range []string{"4", "6"} {
		t.Run("underlay "+underlay, func(t *testing.T) { forgedTunnel(t, underlay) })
	}
}

func forgedTunnel(t *testing.T, underlay string) {
	l := newLab(t)
	u := setup{VXLAN, underlay}
	h1, h2, h3, h4 := l.hosts[0], l.hosts[1], l.hosts[2], l.hosts[3]
	u.all(l.hosts[:3]...) // h4 is a stranger
	talk(t, l.hosts[:3]...)
	h2.sysctl("net/ipv4/conf/"+map[string]string{"4": "patchbay-vx", "6": "patchbay-vx6"}[underlay]+"/rp_filter", "0")
	for _, h := range []*host{h1, h2, h4} { // so the kernel's own check drops nothing
		h.sysctl("net/ipv4/conf/all/rp_filter", "0")
		h.sysctl("net/ipv4/conf/default/rp_filter", "0")
		for _, dev := range []string{"eth0", "cni0"} {
			h.sysctl("net/ipv4/conf/"+dev+"/rp_filter", "0")
		}
	}
	end := func(h *host) string {
		if underlay == "6" {
			return h.underlay6().String()
		}
		return h.underlay4().String()
	}
	heard := map[*host]func(string) bool{h1: h1.container.hears(t), h2: h2.container.hears(t)}
	for i, c := range []struct {
		what   string
		from   *space
		as     string // outer source
		to     *host
		at     string // outer destination; "": the end of to
		src    string // inner source
		tag    []byte
		vni    uint32
		passes bool
	}{
		{what: "a peer's own container", from: h3.space, to: h2, src: "10.40.3.5", passes: true},
		{what: "a peer's own container", from: h3.space, to: h2, src: "fd40:3::5", passes: true},
		{what: "a peer forwards for another network", from: h3.space, to: h2, src: "172.31.0.9", passes: true},
		{what: "a peer answers from its own address", from: h3.space, to: h2, src: h3.underlay4().String(), passes: true},
		{what: "a peer as another peer's container", from: h3.space, to: h2, src: "10.40.1.5"},
		{what: "a peer as another peer's container", from: h3.space, to: h2, src: "fd40:1::5"},
		{what: "a peer as a container of the receiver", from: h3.space, to: h2, src: "10.40.2.9"},
		{what: "a peer with a priority tag", from: h3.space, to: h2, src: "10.40.1.5", tag: []byte{0x81, 0, 0, 0}},
		{what: "a stranger", from: h4.space, to: h2, src: "10.40.1.5"},
		{what: "a container", from: h1.container, to: h2, src: "10.40.3.5"},
		{what: "a container as its neighbour", from: h1.container, to: h2, src: "10.40.1.9"},
		{what: "a container as its neighbour", from: h1.container, to: h2, src: "fd40:1::9"},
		{what: "a container to its own host", from: h1.container, to: h1, src: "10.40.3.5"},
		{what: "a container to its own host", from: h1.container, to: h1, src: "fd40:3::5"},
		{what: "a container to its gateway", from: h1.container, to: h1, at: "10.40.1.1", src: "10.40.3.5"},
		{what: "a container as a peer, to its own host", from: h1.container, as: end(h3), to: h1, src: "10.40.3.5"},
		{what: "a container as a peer, to another host", from: h1.container, as: end(h3), to: h2, src: "10.40.3.5"},
		{what: "a container as its own host", from: h1.container, as: end(h1), to: h2, src: "10.40.1.9"},
	} {
		text := fmt.Sprint("packet ", i)
		dst := fmt.Sprintf("10.40.%d.5", c.to.number)
		if strings.Contains(c.src, ":") {
			dst = fmt.Sprintf("fd40:%d::5", c.to.number)
		}
		f := forged{vni: DefaultVNI, to: VTEP(c.to.id()), tag: c.tag, src: c.src, dst: dst, text: text}
		at := c.at
		if at == "" {
			at = end(c.to)
		}
		c.from.sends(t, c.as, at, f.bytes())
		if got := heard[c.to](text); got != c.passes {
			t.Errorf("%s sends from %s to host %d: passes: %v, want %v", c.what, c.src, c.to.number, got, c.passes)
		}
	}
	talk(t, l.hosts[:3]...)
	before := h2.rules(t)
	u.all(l.hosts[:3]...)
	if again := h2.rules(t); again != before {
		t.Errorf("a second Sync changed\n%s\nto\n%s", before, again)
	}
}

// rules returns the ruleset of a namespace.
func (s *space) rules(t *testing.T) string {
	t.Helper()
	var out []byte
	must(t, s.conn.Do(func() (err error) { out, err = exec.Command("nft", "list", "ruleset").CombinedOutput(); return err }))
	return string(out)
}

// A tunnel of another program with the same port is left alone.
func TestForeignTunnel(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "4"}
	h1, h2 := l.hosts[0], l.hosts[1]
	u.all(h1, h2)
	for i, h := range []*host{h1, l.hosts[3]} {
		h.do(func() error {
			return exec.Command("ip", "link", "add", "other", "type", "vxlan", "id", "77", "dstport", fmt.Sprint(DefaultPort),
				"remote", []string{"198.51.100.4", "192.0.2.1"}[i], "local", []string{"192.0.2.1", "198.51.100.4"}[i]).Run()
		})
		h.addr("other", fmt.Sprintf("10.77.0.%d/24", i+1))
		h.up("other")
	}
	if got := ask(t, h1.space, l.hosts[3].space, "10.77.0.2"); got != "10.77.0.1" {
		t.Errorf("through the other tunnel, seen as %q", got)
	}
}

// A container whose published port is the tunnel's gets no packet of the tunnel, whoever translates: our portmap, Docker or
// kube-proxy. It gets what others send to this port.
func TestPublishedPortOfTheTunnel(t *testing.T) {
	needVXLAN(t)
	for _, underlay := range []string{"4", "6"} {
		t.Run("underlay "+underlay, func(t *testing.T) {
			l := newLab(t)
			h1, h2 := l.hosts[0], l.hosts[1]
			for _, h := range l.hosts[:2] {
				h.do(func() error {
					return exec.Command("nft", fmt.Sprintf(`table inet published { chain prerouting { type nat hook prerouting priority -100;
						fib daddr type local udp dport %d dnat ip to 10.40.%[2]d.5:%[3]d; fib daddr type local udp dport %[1]d dnat ip6 to [fd40:%[2]d::5]:%[3]d; }; }`,
						DefaultPort, h.number, forgedPort)).Run()
				})
			}
			heard := h2.container.hears(t)
			setup{VXLAN, underlay}.all(h1, h2)
			talk(t, h1, h2)
			end := h2.underlay4().String()
			if underlay == "6" {
				end = h2.underlay6().String()
			}
			h1.sends(t, "", end, []byte("a datagram that is none of the tunnel"))
			if !heard("a datagram that is none of the tunnel") {
				t.Error("the published port does not get what is none of the tunnel")
			}
		})
	}
}

// nft prints the guard, and loads what it printed. Damaged parts are restored, and unwanted parts are
// removed.
func TestGuardOfTheTunnel(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "46"}
	h1, h2, h3 := l.hosts[0], l.hosts[1], l.hosts[2]
	u.all(h1, h2)
	nft := func(script string) {
		t.Helper()
		h1.do(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	whole := h1.rules(t)
	if !strings.Contains(whole, "chain tunnel_hosts_in") {
		t.Fatalf("there is no guard:\n%s", whole)
	}
	nft("flush ruleset\n" + whole)
	if again := h1.rules(t); again != whole {
		t.Errorf("nft loaded\n%s\ninstead of\n%s", again, whole)
	}
	for _, damage := range []string{
		"flush ruleset", "flush chain inet patchbay tunnel_hosts_source", "flush set inet patchbay tunnel_hosts_44",
		"flush chain inet patchbay tunnel_hosts_in\ndelete chain inet patchbay tunnel_hosts_in\nadd chain inet patchbay tunnel_hosts_in",
		"insert rule inet patchbay tunnel_hosts_in accept",
	} {
		nft(damage)
		u.sync(h1, h1, h2)
		for _, part := range parts(whole) {
			if !strings.Contains(h1.rules(t), part) {
				t.Errorf("after %q, the agent did not put back\n%s\nin\n%s", damage, part, h1.rules(t))
			}
		}
	}
	u.sync(h1, h1, h3)
	if r := h1.rules(t); strings.Contains(r, "192.0.2.2 . ") || !strings.Contains(r, "192.0.2.3 . ") {
		t.Errorf("the peer changed, and the guard has\n%s", r)
	}
	u.sync(h1, h1, h2)
	leaves(t, h1, h2, Routes)
	u.sync(h1, h1, h2)
	h1.do(func() error { return h1.mesh.Clear(ctx, u.self(h1)) })
	if r := h1.rules(t); strings.Contains(r, "tunnel_") {
		t.Errorf("Clear left\n%s", r)
	}
}

// leaves gives a host another transport, and checks that the guard goes with the device.
func leaves(t *testing.T, h, peer *host, other Transport) {
	t.Helper()
	setup{other, "46"}.sync(h, h, peer)
	if r := h.rules(t); strings.Contains(r, "tunnel_") {
		t.Errorf("with the transport %s the guard of the device that is gone stays:\n%s", other, r)
	}
}

// A host without a tunnel device has containers, too. They cannot send into the tunnel of a peer that accepts
// packets from this host. From a host that uses no tunnels at all, a peer accepts none.
func TestForgedWithoutADevice(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	h1, h2, h3, h4 := l.hosts[0], l.hosts[1], l.hosts[2], l.hosts[3]
	auto, routes := setup{Auto, "46"}, setup{Routes, "46"}
	auto.sync(h1, h1, h2) // both reach each other without a tunnel
	h2.do(func() error {
		return h2.mesh.Apply(ctx, auto.self(h2), append(auto.peers(h2, h1, h4), routes.peers(h2, h3)...))
	})
	routes.sync(h3, h3, h2)
	heard := h2.container.hears(t)
	for i, c := range []struct {
		from *host
		src  string
	}{{h1, "10.40.1.9"}, {h1, "172.31.0.9"}, {h3, "10.40.3.9"}, {h3, "172.31.0.9"}} {
		text := fmt.Sprint("packet ", i)
		f := forged{vni: DefaultVNI, to: VTEP(h2.id()), src: c.src, dst: "10.40.2.5", text: text}
		c.from.container.sends(t, "", h2.underlay4().String(), f.bytes())
		if heard(text) {
			t.Errorf("a container of host %d sends from %s", c.from.number, c.src)
		}
	}
	talk(t, h1, h2)
	if r := h1.rules(t); !strings.Contains(r, "tunnel_hosts_out") || strings.Contains(r, "tunnel_hosts_in") {
		t.Errorf("a host without a device, whose peers have some, has\n%s", r)
	}
	if r := h3.rules(t); strings.Contains(r, "tunnel_") {
		t.Errorf("a host without tunnels has\n%s", r)
	}
	h1.do(func() error { return h1.mesh.Clear(ctx, auto.self(h1)) })
	if r := h1.rules(t); strings.Contains(r, "tunnel_") {
		t.Errorf("Clear left\n%s", r)
	}
}

// The end of a peer's tunnel may have another port than this host's.
func TestForgedToAnotherPort(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "4"}
	h1, h2 := l.hosts[0], l.hosts[1]
	const port = 8472
	self, peers := u.self(h2), u.peers(h1, h2)
	self.Port, peers[0].Port = port, port
	h2.do(func() error { return h2.mesh.Apply(ctx, self, u.peers(h2, h1)) })
	h1.do(func() error { return h1.mesh.Apply(ctx, u.self(h1), peers) })
	heard := h2.container.hears(t)
	f := forged{vni: DefaultVNI, to: VTEP(h2.id()), src: "10.40.1.9", dst: "10.40.2.5", text: "forged"}
	h1.container.throws(t, "", h2.underlay4().String(), port, f.bytes())
	if heard(f.text) {
		t.Error("a container sends as its neighbour")
	}
	f.text = "own"
	h1.throws(t, "", h2.underlay4().String(), port, f.bytes())
	if !heard(f.text) {
		t.Error("the host itself does not send")
	}
}

func TestGuardUntilWireGuard(t *testing.T) {
	needVXLAN(t)
	needWireGuard(t)
	l := newLab(t)
	setup{VXLAN, "46"}.all(l.hosts[:2]...)
	leaves(t, l.hosts[0], l.hosts[1], WireGuard)
}

// parts returns the chains and sets of the tunnel in a listing.
func parts(listing string) (list []string) {
	for _, p := range strings.Split(listing, "\n\n") {
		if strings.Contains(p, "chain tunnel_") || strings.Contains(p, "set tunnel_") {
			list = append(list, strings.TrimRight(strings.TrimPrefix(p, "table inet patchbay {\n"), "}\n"))
		}
	}
	return list
}
