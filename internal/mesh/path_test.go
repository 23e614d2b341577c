// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// The search finds every path MTU, even if some answers are missing.
func TestProbeSearch(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tc := range []struct {
		to                 netip.Addr
		uplink, path, want int
		lost               int // one in so many rounds loses the large packet, and one in so many loses both
	}{
		{four, 1500, 1500, 0, 0}, {four, 1500, 9000, 0, 0}, {four, 1500, 1400, 1400, 0}, {four, 1500, 1499, 1499, 0},
		{four, 9000, 1500, 1500, 0}, {four, 1500, 576, 576, 0}, {four, 1500, 100, 576, 0}, {six, 1500, 1280, 1280, 0},
		{six, 1500, 1492, 1492, 0}, {four, 1500, 1400, 1400, 3}, {four, 1500, 1500, 0, 3}, {four, 9000, 8999, 8999, 2},
	} {
		p := newProbe(tc.to, tc.uplink)
		n := 0
		for ; p.verdict == searching && n < 200; n++ {
			p.large, p.small = p.size() <= tc.path, true
			if tc.lost > 0 && n%tc.lost == 0 {
				p.large, p.small = false, n%(2*tc.lost) == 0
			}
			p.end()
		}
		if p.verdict != works || p.mtu() != tc.want {
			t.Errorf("%+v: %v %d after %d rounds", tc, p.verdict, p.mtu(), n)
		}
	}
	p := newProbe(four, 1500)
	for range rounds {
		p.end()
	}
	if p.verdict != unknown {
		t.Errorf("a peer that does not answer: %v", p.verdict)
	}
}

// A result stays while its peer does not answer. When the peer goes, the result goes too.
func TestFoundPaths(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	f := found{again: make(chan bool, 1)}
	f.pathMTUs(1500)
	f.want([]netip.Addr{a, b}, nil, nil)
	note := func(to netip.Addr, v verdict, low int, changed bool) {
		t.Helper()
		if got := f.note([]*probe{{to: to, uplink: 1500, low: low, verdict: v}}); got != changed {
			t.Errorf("%s: changed %v", to, got)
		}
	}
	note(a, works, 1400, true)
	note(a, works, 1400, false)
	note(b, works, 1500, true)
	note(a, unknown, 576, false)
	note(netip.MustParseAddr("192.0.2.3"), works, 1300, false)
	if got := fmt.Sprint(f.pathMTUs(1500)); got != "map[192.0.2.1:1400 192.0.2.2:0]" {
		t.Error(got)
	}
	f.want([]netip.Addr{b}, nil, nil)
	note(b, unknown, 0, true)
	if got := fmt.Sprint(f.pathMTUs(1500)); got != "map[192.0.2.2:0]" {
		t.Error(got)
	}
}

// The MTU of a path limits the MTU of routes, but not that of devices. If a path cannot carry IPv6,
// the peer gets no IPv6 route.
func TestCompilePaths(t *testing.T) {
	addr := netip.MustParseAddr
	self, peers, facts := world()
	facts.Key = Key{1}
	peers[0].Transport, peers[0].Key = WireGuard, Key{2}
	peers[0].Blocks = []netip.Prefix{netip.MustParsePrefix("10.50.6.0/24")} // a network of its own
	self.Blocks = append(self.Blocks, netip.MustParsePrefix("10.50.1.0/24"))
	facts.Paths = map[netip.Addr]int{addr("192.0.2.2"): 1400, addr("2001:db8:1::2"): 0, addr("198.51.100.4"): 1320, addr("2001:db8:2::6"): 1400}
	s, err := Compile(self, peers, facts)
	if err == nil || !strings.Contains(err.Error(), "peer far (node-4): no route to fd40:4::/64: the path carries packets of 1270 bytes to it, and IPv6 needs 1280") {
		t.Errorf("%v", err)
	}
	golden(t, "paths", s.String())
	if got := fmt.Sprint(s.Ends); got != "[192.0.2.2 198.51.100.4 2001:db8:1::2 2001:db8:2::6]" {
		t.Error(got)
	}
	for _, r := range s.Routes {
		if r.KeepMTU {
			t.Errorf("%s keeps its MTU although the path is known", r)
		}
	}
}

// probing runs Probe on h, and Sync when Probe found something. It does so until the caller calls
// stop.
func (h *host) probing(sync func()) (stop func()) {
	h.t.Helper()
	ns, err := netns.Open(h.path)
	must(h.t, err)
	thread, err := nl.In(ns, "/proc")
	must(h.t, err)
	within, cancel := context.WithCancel(ctx)
	changed, ended, done := make(chan bool, 100), make(chan error, 1), make(chan bool)
	go func() {
		ended <- thread.Do(func() error { return h.mesh.Probe(within, func() { changed <- true }) })
		close(changed)
	}()
	go func() {
		defer close(done)
		for range changed {
			sync()
		}
	}()
	return func() {
		h.t.Helper()
		cancel()
		must(h.t, <-ended)
		<-done
		thread.Close()
	}
}

// await waits until a text is among the host's routes, or is not.
func (h *host) await(what, text string, there bool) {
	h.t.Helper()
	for end := time.Now().Add(8 * patience); ; time.Sleep(20 * time.Millisecond) {
		routes := h.sh("ip route; ip -6 route")
		if strings.Contains(routes, text) == there {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s: %q in the routes is not %v:\n%s", what, text, there, routes)
		}
	}
}

// blackHole makes a link of the router carry 1400 bytes. The router sends no error to the sender.
func (l *lab) blackHole(link string) {
	l.t.Helper()
	l.router.sh("ip link set " + link + ` mtu 1400
		nft 'table inet hole { chain out { type filter hook output priority 0;
			icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }'`)
}

// arrives sends a datagram of a size until it comes back. An application repeats its first
// datagram too, and its kernel then knows the path MTU.
func arrives(t *testing.T, from, to *space, addr string, size int, within time.Duration) bool {
	t.Helper()
	var echo, near net.PacketConn
	must(t, to.conn.Do(func() (err error) {
		echo, err = net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
		return err
	}))
	must(t, from.conn.Do(func() (err error) { near, err = net.ListenPacket("udp", ":0"); return err }))
	defer near.Close() //nolint:errcheck // a test
	defer echo.Close() //nolint:errcheck // a test
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			echo.WriteTo(buf[:n], from) //nolint:errcheck // the sender repeats it
		}
	}()
	buf := make([]byte, 1<<16)
	for end := time.Now().Add(within); time.Now().Before(end); {
		near.WriteTo(make([]byte, size), echo.LocalAddr())          //nolint:errcheck // repeated
		near.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) //nolint:errcheck // a test
		if n, _, err := near.ReadFrom(buf); err == nil && n == size {
			return true
		}
	}
	return false
}

// Between two hosts is a router with a smaller MTU, whose ICMP errors are lost. After Probe,
// large packets pass over TCP and UDP. A new agent keeps the MTU that was found.
func TestPath(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	for _, tc := range []struct {
		setup
		peer int
		// MTUs of the routes there and back. A link with an MTU of 1400 lets frames of 1404
		// bytes in, for a VLAN tag.
		there, back string
	}{
		{setup{Routes, "46"}, 1, "mtu 140", "mtu 140"},
		{setup{VXLAN, "4"}, 3, "mtu 1350", "mtu 1354"},
		{setup{VXLAN, "6"}, 3, "mtu 1330", "mtu 1330"},
		{setup{WireGuard, "4"}, 3, "mtu 1340", "mtu 1344"},
		{setup{WireGuard, "6"}, 3, "mtu 1320", "mtu 1320"},
	} {
		if tc.transport == VXLAN && tc.underlay == "4" && !draw.All(t) {
			continue // TestOffload has it, too
		}
		t.Run(string(tc.transport)+tc.underlay, func(t *testing.T) {
			switch tc.transport {
			case VXLAN:
				needVXLAN(t)
			case WireGuard:
				needWireGuard(t)
			case Routes, Auto:
			}
			l := newLab(t)
			h1, far := l.hosts[0], l.hosts[tc.peer]
			for _, h := range []*host{h1, far} {
				h.sh("ip link set eth0 gso_max_segs 1") // a bridge lets longer packets of TCP pass
			}
			l.blackHole(fmt.Sprintf("to%d", far.number))
			tc.all(h1, far)
			talk(t, h1, far)
			to := fmt.Sprintf("10.40.%d.5", far.number)
			if tc.underlay != "4" && arrives(t, h1.container, far.container, to, 1472, 300*time.Millisecond) {
				t.Error("large packets pass without Probe")
			}
			stop1 := h1.probing(func() { tc.sync(h1, h1, far) })
			stop2 := far.probing(func() { tc.sync(far, h1, far) })
			h1.await("found", tc.there, true)
			far.await("found", tc.back, true)
			for _, to := range []string{to, fmt.Sprintf("fd40:%d::5", far.number)} {
				if !arrives(t, h1.container, far.container, to, 1472, 2*patience) {
					t.Errorf("no large datagram to %s", to)
				}
				must(t, connect(t, h1.container, far.container, to).echo(strings.Repeat("x", 1<<15)))
			}
			stop1()
			h1.mesh.Close()
			h1.open()
			tc.sync(h1, h1, far)
			h1.await("with a new agent", tc.there, true)
			quiet(t, tc.setup, h1, far)

			l.router.sh(fmt.Sprintf("ip link set to%d mtu 1500", far.number))
			stop1 = h1.probing(func() { tc.sync(h1, h1, far) })
			h1.await("the path is wide again", tc.there, false)
			stop1()
			stop2()
		})
	}
}
