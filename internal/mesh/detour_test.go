// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// sourced is a setup in which each host has the first address of its blocks.
type sourced struct{ setup }

func (u sourced) self(h *host) Self {
	self := u.setup.self(h)
	for _, b := range self.Blocks {
		self.Sources = append(self.Sources, b.Addr())
	}
	return self
}

func (u sourced) sync(h *host, hosts ...*host) {
	h.t.Helper()
	h.do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, hosts...)) })
}

// said has the last call of Options.Detour.
type said struct {
	mu   sync.Mutex
	text string
}

func (s *said) take(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text = ""; err != nil {
		s.text = err.Error()
	}
}

func (s *said) get() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// The switch between two hosts drops packets with other addresses than the hosts' own, as clouds do. Then
// the tunnel carries the packets of this family until the switch passes them, even if the agent restarts.
func TestDetour(t *testing.T) {
	needVXLAN(t)
	nettest.Need(t, nettest.Program("nft"))
	l := newLab(t)
	h1, h2, u := l.hosts[0], l.hosts[1], sourced{setup{Auto, "46"}}
	var detour said
	stops := make([]func(), 2)
	start := func(i int, h *host) {
		h.mesh.opts.Detour = func(error) {}
		if h == h1 {
			h.mesh.opts.Detour = detour.take
		}
		u.sync(h, h1, h2)
		stops[i] = h.probing(func() { u.sync(h, h1, h2) })
	}
	start(0, h1)
	start(1, h2)
	const there, back = "10.40.%d.0/24 via inet6 fe80::", "10.40.%d.0/24 via 192.0.2."
	talk(t, h1, h2)
	h1.await("a direct route", fmt.Sprintf(back, 2), true)

	l.router.sh(`nft 'table bridge cloud { chain check { type filter hook forward priority 0; ip saddr 10.40.0.0/16 counter drop; }; }'`)
	for _, h := range []*host{h1, h2} {
		h.mesh.paths.stir()
	}
	h1.await("the detour", fmt.Sprintf(there, 2), true)
	h2.await("the detour", fmt.Sprintf(there, 1), true)
	h1.await("IPv6 stays", "fd40:2::/64 via 2001:db8:1::2", true)
	talk(t, h1, h2)
	if text := detour.get(); !strings.Contains(text, "the VXLAN tunnel carries them to node-2: let the network pass them") {
		t.Errorf("it says %q", text)
	}

	stops[0]()
	h1.mesh.Close()
	h1.open()
	h1.mesh.opts.Detour = detour.take
	u.sync(h1, h1, h2)
	if routes := h1.sh("ip route"); !strings.Contains(routes, fmt.Sprintf(there, 2)) {
		t.Errorf("a new agent takes the direct route again:\n%s", routes)
	}
	quietly(t, u, h1, h1, h2)
	l.router.sh("nft delete table bridge cloud")
	start(0, h1)
	h2.mesh.paths.stir()
	h1.await("no detour", fmt.Sprintf(there, 2), false)
	h2.await("no detour", fmt.Sprintf(there, 1), false)
	talk(t, h1, h2)
	if text := detour.get(); text != "" {
		t.Errorf("it says %q with the routes\n%s", text, h1.sh("ip route; ip -6 route"))
	}
	stops[0]()
	stops[1]()
}

// quietly checks that another Sync changes no route.
func quietly(t *testing.T, u sourced, h *host, hosts ...*host) {
	t.Helper()
	before := h.sh("ip route; ip -6 route")
	u.sync(h, hosts...)
	if after := h.sh("ip route; ip -6 route"); after != before {
		t.Errorf("another Sync left\n%swas\n%s", after, before)
	}
}

// tests tests the direct routes of h to a peer.
func (u sourced) tests(within context.Context, h, peer *host) (detours map[netip.Addr]bool) {
	h.t.Helper()
	u.sync(h, h, peer)
	h.do(func() error {
		e, err := openEcho(h.mesh.waits)
		if err != nil {
			return err
		}
		defer e.close()
		detours, err = e.testDirects(within, h.mesh.conn, h.mesh.paths.directs)
		return err
	})
	return detours
}

// The test of a peer whose agent does not run, or is too old to have the address, has no result. If that agent starts between
// the test of the direct route and the test of the tunnel, the peer must not count as reachable only through the tunnel.
func TestNoDetour(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	h1, h2, u := l.hosts[0], l.hosts[1], sourced{setup{Auto, "4"}}
	if detours := u.tests(ctx, h1, h2); len(detours) > 0 {
		t.Errorf("no agent: %v", detours)
	}
	late := &lateStart{Context: ctx, at: time.Now().Add(rounds * h1.mesh.waits.round), start: func() { u.sync(h2, h1, h2) }}
	detours := u.tests(late, h1, h2)
	if detour, known := detours[netip.MustParseAddr("10.40.2.0")]; late.start != nil || detour || !known {
		t.Errorf("a late agent: %v", detours)
	}
}

// lateStart calls start once, when the last request for the direct route has timed out.
type lateStart struct {
	context.Context
	at    time.Time
	start func()
}

func (l *lateStart) Err() error {
	if start := l.start; start != nil && !time.Now().Before(l.at) {
		l.start = nil
		start()
	}
	return nil
}

// The test checks which routes are tested, and how a detour changes them.
func TestCompileDetour(t *testing.T) {
	self, peers, facts := world()
	self.Sources = []netip.Addr{netip.MustParseAddr("10.40.1.0"), netip.MustParseAddr("fd40:1::")}
	facts.Detours = map[netip.Addr]bool{netip.MustParseAddr("10.40.2.0"): true}
	s, err := Compile(self, peers, facts)
	must(t, err)
	golden(t, "detour", s.String())
	var got []string
	for _, d := range s.Directs {
		got = append(got, fmt.Sprint(d.link, " ", d.source, " ", d.target, " ", d.tunnel.device, " ", d.tunnel.hop))
	}
	want := []string{"eth0 10.40.1.0 10.40.2.0 patchbay-vx fe80::18:b0ff:fe90:4e96", "eth0 fd40:1:: fd40:2:: patchbay-vx fe80::18:b0ff:fe90:4e96"}
	if !slices.Equal(got, want) || !slices.Equal(s.Detoured, []string{"near (node-2)"}) {
		t.Error(got, s.Detoured)
	}
	peers[2].Transport = Routes
	if s, err = Compile(self, peers, facts); err != nil || len(s.Directs)+len(s.Detoured) > 0 {
		t.Errorf("transport routes: %v, %v", s.Directs, err)
	}
}
