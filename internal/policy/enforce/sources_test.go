// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Sources are checked on a node that has no policy, too: policies of other nodes trust them.
func TestForgedSourceWithoutPolicies(t *testing.T) {
	f := newForger(t)
	f.load()
	f.attach()
	f.load()
	for _, c := range []struct {
		from, to, at string
		passes       bool
	}{
		{"10.1.1.1", "10.1.1.2", "10.1.1.2", true},
		{"fd01::1:1", "fd01::1:2", "fd01::1:2", true},
		{"10.1.1.1", "10.9.0.1", "10.9.0.1", true},
		{"fe80::a%eth0", "fe80::b%eth0", "fe80::b%v0", true}, // no policy judges it
		{"10.1.1.3", "10.1.1.2", "10.1.1.2", false},
		{"fd01::1:3", "fd01::1:2", "fd01::1:2", false},
		{"10.1.1.3", "10.9.0.1", "10.9.0.1", false},
		{"fd01::1:3", "fd09::1", "fd09::1", false},
	} {
		if got := f.passes(c.from, c.to, c.at); got != c.passes {
			t.Errorf("%s -> %s passes: %v, want %v", c.from, c.to, got, c.passes)
		}
	}
	if drops, err := f.enforcer.Drops(); err != nil || len(drops) != 1 || drops[0].Packets < 4 {
		t.Errorf("the dropped packets are counted as %v, %v", drops, err)
	}
}

// A forged packet does not slip into a connection of the pod whose address it has.
func TestForgedSourceInAConnection(t *testing.T) {
	f := newForger(t)
	f.load(fromC)
	to := &net.UDPAddr{IP: net.IP{10, 1, 1, 2}, Port: 80}
	var conn net.PacketConn
	must(t, f.client.Do(func() (err error) { conn, err = net.ListenPacket("udp", "10.1.1.3:4444"); return err }))
	defer conn.Close() //nolint:errcheck // a test
	server := f.heard["10.1.1.2"]
	arrives := func(text string) bool {
		_, err := conn.WriteTo([]byte(text), to)
		must(t, err)
		must(t, server.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		b := make([]byte, 64)
		n, from, err := server.ReadFrom(b)
		if err == nil {
			_, err = server.WriteTo([]byte("answer"), from)
		}
		return err == nil && string(b[:n]) == text
	}
	f.node.route(t, netip.MustParseAddr("10.1.1.3"), "v0") // so that the answer comes back
	if !arrives("first") || !arrives("second") {
		t.Fatal("the connection does not begin")
	}
	l, err := f.node.Link("v0")
	must(t, err)
	must(t, f.node.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix(netip.MustParsePrefix("10.1.1.3/32"))}))
	f.attach()
	f.load(fromC)
	if arrives("third") {
		t.Error("a forged packet of an established connection passes")
	}
}

// These pods still work: one that routes another network, one that an earlier release attached, and one
// with an address that its record does not have.
func TestSourcesThatGoOn(t *testing.T) {
	f := newForger(t)
	f.address(f.client, "lo", "172.31.0.9/32")
	f.load()
	must(t, f.node.Do(func() error {
		f.enforcer.fw.Add(nft.Sources("v0", "", nil, "former release")...) // no address
		checkSources(f.enforcer.fw, true, false)
		return f.enforcer.fw.Commit(t.Context())
	}))
	if !f.passes("10.1.1.1", "10.1.1.2", "10.1.1.2") || !f.passes("fd01::1:1", "fd01::1:2", "fd01::1:2") || f.passes("10.1.1.3", "10.1.1.2", "10.1.1.2") {
		t.Error("a pod of an earlier release does not send from its addresses alone")
	}
	f.attach()
	f.load()
	if f.passes("172.31.0.9", "10.1.1.2", "10.1.1.2") {
		t.Error("a pod sends from a network that the node does not route to it")
	}
	f.node.route(t, netip.MustParseAddr("172.31.0.9"), "v0")
	if !f.passes("172.31.0.9", "10.1.1.2", "10.1.1.2") {
		t.Error("a pod cannot send from a network that the node routes to it")
	}
}

// bridged is a client and a server at ports of a bridge.
type bridged struct{ *forger }

func newBridged(t *testing.T) *bridged {
	w := newTown(t)
	node := w.nodes[0]
	must(t, node.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	must(t, node.up("br0"))
	f := &forger{&pair{town: w, node: node, client: w.house("client"), server: w.house("server"), enforcer: New(nft.Open(t.TempDir()), Options{})}, map[string]net.PacketConn{}, 0}
	bridge, err := node.Link("br0")
	must(t, err)
	for i, h := range []*house{f.client, f.server} {
		port := []string{"v0", "v1"}[i]
		w.resolving(h, "eth0", node, port)
		l, err := node.Link(port)
		must(t, err)
		must(t, node.LinkSetMaster(l, bridge))
	}
	f.address(node, "br0", "10.3.0.254/24", "fd03::fe/64")
	f.address(f.client, "eth0", "10.3.0.1/24", "fd03::1/64", "10.3.0.3/24", "fd03::3/64")
	f.address(f.server, "eth0", "10.3.0.2/24", "fd03::2/64")
	for addr, h := range map[string]*house{"10.3.0.2": f.server, "fd03::2": f.server, "10.3.0.254": node, "fd03::fe": node} {
		must(t, h.Do(func() (err error) {
			f.heard[addr], err = net.ListenPacket("udp", net.JoinHostPort(addr, "80"))
			return err
		}))
		t.Cleanup(func() { f.heard[addr].Close() }) //nolint:errcheck // a test
	}
	ready := func() bool { // the ports forward, and the neighbours are known
		return f.passes("10.3.0.1", "10.3.0.2", "10.3.0.2") && f.passes("fd03::1", "fd03::2", "fd03::2") &&
			f.passes("fd03::3", "fd03::2", "fd03::2") && f.passes("fd03::3", "fd03::fe", "fd03::fe")
	}
	if !eventually(ready) {
		t.Fatal("the ports of the bridge do not forward")
	}
	return &bridged{f}
}

// frame sends a frame from the client, with VLAN tags before an IPv4 packet to the bridge.
func (b *bridged) frame(src string, tags ...byte) bool {
	b.t.Helper()
	bridge, err := b.node.Link("br0")
	must(b.t, err)
	udp := binary.BigEndian.AppendUint16([]byte{0x11, 0x11, 0, 80}, uint16(8+len(src)))
	udp = append(append(udp, 0, 0), src...)
	h := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, netip.MustParseAddr(src).AsSlice()...)
	h = append(h, 10, 3, 0, 254)
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum>>16+sum&0xffff))
	frame := append(append([]byte{}, bridge.Attrs().HardwareAddr...), 2, 0, 0, 0, 0, 7)
	frame = append(append(append(append(frame, tags...), 8, 0), h...), udp...)
	must(b.t, b.client.Do(func() error {
		l, err := b.client.Link("eth0")
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
	listener := b.heard["10.3.0.254"]
	must(b.t, listener.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	for buf := make([]byte, 64); ; {
		n, _, err := listener.ReadFrom(buf)
		if err != nil || string(buf[:n]) == src {
			return err == nil
		}
	}
}

// The port of a bridge sends only from the pod's addresses, to the bridge and to other ports.
func TestForgedSourceOnABridge(t *testing.T) {
	b := newBridged(t)
	once, twice := []byte{0x81, 0, 0, 0}, []byte{0x81, 0, 0, 0, 0x81, 0, 0, 0}
	a, _ := closureOf("a", addrs("10.3.0.1", "fd03::1")...)
	a.Port, a.Close = "v0", [2]bool{}
	for _, checked := range []bool{false, true, false} {
		must(t, b.node.Do(func() error {
			if checked {
				Close(b.enforcer.fw, a, false)
			} else {
				Reopen(b.enforcer.fw, a)
			}
			return b.enforcer.fw.Commit(t.Context())
		}))
		for _, c := range []struct{ from, to string }{{"10.3.0.1", "10.3.0.2"}, {"fd03::1", "fd03::2"}, {"10.3.0.1", "10.3.0.254"}, {"fd03::1", "fd03::fe"}} {
			if !b.passes(c.from, c.to, c.to) {
				t.Errorf("checked: %v: %s -> %s does not pass", checked, c.from, c.to)
			}
		}
		for _, c := range []struct{ from, to string }{{"10.3.0.3", "10.3.0.2"}, {"fd03::3", "fd03::2"}, {"10.3.0.3", "10.3.0.254"}, {"fd03::3", "fd03::fe"}} {
			if b.passes(c.from, c.to, c.to) == checked {
				t.Errorf("checked: %v: %s -> %s passes: %v", checked, c.from, c.to, checked)
			}
		}
		for _, tags := range [][]byte{nil, once, twice} {
			if b.frame("10.3.0.3", tags...) == checked {
				t.Errorf("checked: %v: a frame with %d VLAN tags passes: %v", checked, len(tags)/4, checked)
			}
			if want := len(tags) == 0 || !checked; b.frame("10.3.0.1", tags...) != want {
				t.Errorf("checked: %v: a frame with %d VLAN tags from the pod's address passes: %v", checked, len(tags)/4, !want)
			}
		}
	}
}

// IPv6 and DHCP work at a checked port: looking for a duplicate, neighbours, link-local addresses.
func TestWhatACheckedPortMaySend(t *testing.T) {
	b := newBridged(t)
	a, _ := closureOf("a", addrs("10.3.0.1", "fd03::1")...)
	a.Port, a.Close = "v0", [2]bool{}
	must(t, b.node.Do(func() error { Close(b.enforcer.fw, a, false); return b.enforcer.fw.Commit(t.Context()) }))
	for _, h := range []*house{b.client, b.server, b.node} {
		must(t, h.Do(func() error { return exec.Command("ip", "neigh", "flush", "all").Run() }))
	}
	if !b.passes("fd03::1", "fd03::2", "fd03::2") || !b.passes("10.3.0.1", "10.3.0.2", "10.3.0.2") {
		t.Error("the pod does not find its neighbours")
	}
	var dhcp net.PacketConn
	must(t, b.node.Do(func() (err error) { dhcp, err = net.ListenPacket("udp4", ":67"); return err }))
	defer dhcp.Close() //nolint:errcheck // a test
	must(t, b.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // a test
		l, err := b.client.Link("eth0")
		if err != nil {
			return err
		}
		p := []byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0x7a, 0xce, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68, 0, 67, 0, 12, 0, 0, 'd', 'h', 'c', 'p'}
		p[10], p[11] = 0, 0
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum&0xffff))
		return unix.Sendto(fd, p, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: 8, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}})
	}))
	must(t, dhcp.SetReadDeadline(time.Now().Add(time.Second)))
	if n, _, err := dhcp.ReadFrom(make([]byte, 64)); err != nil || n != 4 {
		t.Errorf("a DHCP client without an address is not heard: %v", err)
	}
}

// Verify finds damage of the check, Rebuild repairs it, and nft loads what it prints.
func TestSourcesAreRepaired(t *testing.T) {
	f := newForger(t)
	a, _ := closureOf("a", addrs("10.1.1.1", "fd01::1:1")...)
	a.Link, a.Port, a.Close = "v0", "v9", [2]bool{}
	fw := f.enforcer.fw
	do := func(work func() error) { t.Helper(); must(t, f.node.Do(work)) }
	nftIn := func(script string) string {
		t.Helper()
		var out []byte
		do(func() (err error) {
			cmd := exec.Command("nft", "-f", "-")
			if script == "" {
				cmd = exec.Command("nft", "list", "ruleset")
			}
			cmd.Stdin = strings.NewReader(script)
			out, err = cmd.CombinedOutput()
			if err != nil {
				t.Error(script, string(out))
			}
			return err
		})
		return string(out)
	}
	do(func() error { Close(fw, a, false); return fw.Commit(t.Context()) })
	whole := nftIn("")
	nftIn("flush ruleset\n" + whole)
	if again := nftIn(""); again != whole {
		t.Errorf("nft loaded\n%s\ninstead of\n%s", again, whole)
	}
	do(func() error {
		diffs, err := fw.Verify()
		if len(diffs) > 0 {
			t.Errorf("Verify finds %q", diffs)
		}
		return err
	})
	for _, damage := range []string{
		"flush chain inet patchbay policy_sources", "insert rule bridge patchbay policy_sources accept",
		"flush chain bridge patchbay policy_sources\ndelete chain bridge patchbay policy_sources",
		"flush chain inet patchbay policy_sources\ndelete chain inet patchbay policy_sources\nadd chain inet patchbay policy_sources { type filter hook input priority 0; }",
	} {
		nftIn(damage)
		do(func() error {
			diffs, err := fw.Verify()
			if len(diffs) == 0 {
				t.Errorf("after %q, Verify finds nothing", damage)
			}
			must(t, err)
			return fw.Rebuild(t.Context())
		})
		if again := nftIn(""); !sameLines(again, whole) {
			t.Errorf("after %q, Rebuild makes\n%s\ninstead of\n%s", damage, again, whole)
		}
	}
	do(func() error { return f.enforcer.Clear(t.Context()) })
	if left := nftIn(""); strings.Contains(left, "policy_") {
		t.Errorf("Clear left\n%s", left)
	}
	do(func() error { Reopen(fw, a); return fw.Commit(t.Context()) })
}

// sameLines compares listings whatever their order.
func sameLines(a, b string) bool {
	count := map[string]int{}
	for _, l := range strings.Split(a, "\n") {
		count[strings.TrimSpace(l)]++
	}
	for _, l := range strings.Split(b, "\n") {
		count[strings.TrimSpace(l)]--
	}
	for l, n := range count {
		if n != 0 && l != "" {
			return false
		}
	}
	return true
}

// hasPolicies reports whether a listing has objects of policies besides those that check sources.
func hasPolicies(listing string) bool {
	for _, line := range strings.Split(listing, "\n") {
		ofSources := func(name string) bool { return strings.Contains(line, name) }
		if strings.Contains(line, "policy_") && !slices.ContainsFunc([]string{"policy_sources", nft.SetSource4, nft.SetSource6, nft.SetOwnSource, nft.CountForged}, ofSources) {
			return true
		}
	}
	return false
}
