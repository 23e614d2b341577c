// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func newKeys(t testing.TB) *Keys {
	t.Helper()
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(t, err)
	return &Keys{Public: Key(k.PublicKey().Bytes()), Private: Secret(k.Bytes())}
}

// needWireGuard skips a test of hosts with a bridge, whose own address for WireGuard is the first one of their block.
func needWireGuard(t testing.TB) {
	t.Helper()
	nettest.Need(t, nettest.LinkKind("wireguard"))
	nettest.Need(t, nettest.FirstAddress())
}

func TestParseKey(t *testing.T) {
	k := newKeys(t).Public
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"", "x", k.String()[1:], k.String() + "A", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="} {
		if got, err := ParseKey(wrong); err == nil {
			t.Errorf("%q: %v", wrong, got)
		}
	}
}

// A peer without a key has no route, and its whole network is refused, so no packet takes the
// default route.
func TestCompileUnencrypted(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Self, []Peer, *Observed)
		want   string
	}{
		"no key":  {func(_ *Self, p []Peer, _ *Observed) { p[2].Key = Key{} }, "peer near (node-2): it has published no WireGuard key"},
		"ours":    {func(_ *Self, p []Peer, _ *Observed) { p[2].Key = Key{1} }, "is this host's own: are the hosts copies?"},
		"twice":   {func(_ *Self, p []Peer, _ *Observed) { p[1].Key = p[2].Key }, "is that of peer node-2: are they copies?"},
		"address": {func(_ *Self, p []Peer, _ *Observed) { p[2].Underlay = nil }, "no underlay address"},
		"family": {func(self *Self, p []Peer, _ *Observed) {
			self.Underlay, p[2].Underlay = self.Underlay[:1], p[2].Underlay[1:]
		}, "no family in common"},
		"MTU":  {func(_ *Self, _ []Peer, f *Observed) { f.MTU = 1300 }, "no route to fd40:2::/64: packets in the tunnel have 1240 bytes at most, and IPv6 needs 1280: raise the MTU of the uplink, which is 1300, to 1340"},
		"IPv6": {func(_ *Self, _ []Peer, f *Observed) { f.NoIPv6 = true }, "no route to fd40:2::/64: this kernel was booted without IPv6"},
	} {
		t.Run(name, func(t *testing.T) {
			self, peers, facts := world()
			facts.Key = Key{1}
			for i := range peers {
				peers[i].Transport, peers[i].Key = WireGuard, Key{2, byte(i)}
			}
			tc.change(&self, peers, &facts)
			s, err := Compile(self, peers, facts)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			refused := 0
			for _, r := range s.Routes {
				if r.Refused {
					refused++
				} else if r.Link != DefaultWireDevice {
					t.Errorf("not encrypted: %s", r)
				}
			}
			if want := map[bool]int{false: 2, true: 1}[name == "IPv6"]; refused != want {
				t.Errorf("%d refused networks, want %d:\n%s", refused, want, s)
			}
		})
	}
}

// A host that encrypts makes its networks unreachable even before it knows a peer.
func TestCompileEncryptedAlone(t *testing.T) {
	self, _, facts := world()
	for i := range self.Subnets {
		self.Subnets[i].Encrypted = true
	}
	s, err := Compile(self, nil, facts)
	if err != nil || len(s.Routes) != len(self.Subnets) {
		t.Errorf("%v\n%s", err, s)
	}
	for _, r := range s.Routes {
		if !r.Refused {
			t.Error(r)
		}
	}
}

// Two networks on the same hosts: one is encrypted, and its peers with another transport are left out.
// The other one has a tunnel, and no address on the encrypting device.
func TestCompileBoth(t *testing.T) {
	self, peers, facts := world()
	facts.Key = Key{1}
	self.Subnets[2].Encrypted, self.Subnets[2].Closed, facts.Uplinks = true, true, []string{"eth0"}
	self.Blocks = append(self.Blocks, netip.MustParsePrefix("10.50.1.0/24"))
	plain, wire := peers[2], peers[2]
	plain.Transport = VXLAN
	plain.Blocks = append(plain.Blocks[:2:2], netip.MustParsePrefix("10.50.3.0/24"))
	wire.Blocks, wire.Transport, wire.Key = []netip.Prefix{netip.MustParsePrefix("10.50.2.0/24")}, WireGuard, Key{2}
	s, err := Compile(self, []Peer{plain, wire}, facts)
	if want := `peer near (node-2): no route to 10.50.3.0/24: its network is encrypted, and transport "vxlan" is not`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	golden(t, "both", s.String())
}

// A kernel without WireGuard, or a program without a key, changes nothing.
func TestNoWireGuard(t *testing.T) {
	l := newLab(t)
	h, u := l.hosts[0], setup{Routes, "46"}
	u.sync(h, l.hosts[:3]...)
	before := h.snapshot()
	apply := func() error {
		u := setup{WireGuard, "46"}
		return h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts...)) })
	}
	if nettest.LinkKind("wireguard").Probe() != nil {
		if err := apply(); !errors.Is(err, ErrSelf) || !errors.Is(err, nl.ErrNoWireGuard) {
			t.Errorf("%v", err)
		}
	}
	h.mesh.Close()
	h.keys = nil
	h.open()
	if err := apply(); !errors.Is(err, ErrSelf) || !strings.Contains(err.Error(), "needs a key") {
		t.Errorf("%v", err)
	}
	if after := h.snapshot(); after != before {
		t.Errorf("it changed:\n%swas\n%s", after, before)
	}
}

func TestWireGuard(t *testing.T) {
	needWireGuard(t)
	for _, underlay := range []string{"4", "6", "46"} {
		t.Run(underlay, func(t *testing.T) {
			l := newLab(t)
			u := setup{WireGuard, underlay}
			u.all(l.hosts...)
			talk(t, l.hosts...)
			quiet(t, u, l.hosts...)
			h1, h4 := l.hosts[0], l.hosts[3]
			if out := h1.sh("ip -6 addr show dev " + DefaultWireDevice); !strings.Contains(out, "global nodad") {
				t.Errorf("its address was tentative at first:\n%s", out)
			}
			for to, want := range map[string]string{"10.40.4.5": "10.40.1.0", "fd40:4::5": "fd40:1::"} {
				if got := ask(t, h1.space, h4.container, to); got != want {
					t.Errorf("a process of host 1 to %s: seen as %q, want %q", to, got, want)
				}
			}
			s := connect(t, h1.container, h4.container, "10.40.4.5")
			must(t, s.echo(strings.Repeat("x", 1<<16))) // in packets of the full MTU
		})
	}
}

// With WireGuard, no part of a connection can be read between the hosts; without encryption, all of
// it can.
func TestEncrypted(t *testing.T) {
	needWireGuard(t)
	l := newLab(t)
	h1, h4 := l.hosts[0], l.hosts[3]
	setup{VXLAN, "46"}.all(l.hosts...)
	for _, transport := range []Transport{VXLAN, WireGuard} {
		setup{transport, "46"}.all(l.hosts...)
		seen := l.router.capture(t)
		s := connect(t, h1.container, h4.container, "10.40.4.5")
		must(t, s.echo("a secret"))
		six := connect(t, h1.container, h4.container, "fd40:4::5")
		must(t, six.echo("a secret"))
		clear, wire := 0, 0
		for _, p := range seen() {
			if bytes.Contains(p, []byte("a secret")) || bytes.Contains(p, []byte{10, 40, 4, 5}) {
				clear++
			}
			if len(p) > 24 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == DefaultWirePort {
				wire++
			}
		}
		if encrypts := transport == WireGuard; (clear == 0) != encrypts || (wire > 0) != encrypts {
			t.Errorf("%s: %d packets can be read, %d are WireGuard's", transport, clear, wire)
		}
	}
}

// No packet is lost while agents start again, and other peers come and go.
func TestWireRestart(t *testing.T) {
	needWireGuard(t)
	l := newLab(t)
	u := setup{WireGuard, "4"}
	h1, h2, h4 := l.hosts[0], l.hosts[1], l.hosts[3]
	u.all(h1, h2, h4)
	talk(t, h1, h4)
	index := h1.link(DefaultWireDevice).Attrs().Index
	stop := pings(t, h1, h4)
	for n := range 4 {
		for _, h := range []*host{h1, h4} {
			h.mesh.Close()
			h.open()
			u.sync(h, h1, h4, l.hosts[1+n%2]) // one peer comes, one goes
			u.sync(h, h1, h4)
		}
	}
	if n := stop(); n < 8 {
		t.Errorf("%d datagrams", n)
	}
	if now := h1.link(DefaultWireDevice).Attrs().Index; now != index {
		t.Errorf("the device was made anew: %d, was %d", now, index)
	}
	quiet(t, u, h1, h4)
}

// wirePeers returns the keys of the device's peers.
func (h *host) wirePeers() (keys []Key) {
	h.t.Helper()
	w, err := h.conn.WireGuard()
	must(h.t, err)
	defer w.Close()
	d, err := w.Device(h.link(DefaultWireDevice).Attrs().Index)
	must(h.t, err)
	for _, p := range d.Peers {
		keys = append(keys, p.Key)
	}
	return keys
}

// A peer publishes another key, moves to another address, and leaves.
func TestWirePeer(t *testing.T) {
	needWireGuard(t)
	l := newLab(t)
	u := setup{WireGuard, "4"}
	h1, h2 := l.hosts[0], l.hosts[1]
	u.all(h1, h2)
	talk(t, h1, h2)

	h2.mesh.Close()
	h2.keys = newKeys(t)
	h2.open()
	u.all(h1, h2)
	talk(t, h1, h2)
	if got := h1.wirePeers(); len(got) != 1 || got[0] != h2.keys.Public {
		t.Errorf("%v, want %v", got, h2.keys.Public)
	}

	h2.renumber("192.0.2.22", "2001:db8:1::22")
	u.all(h1, h2)
	talk(t, h1, h2)

	self, peers := u.self(h1), u.peers(h1, h2)
	peers[0].Blocks = peers[0].Blocks[:1]
	h1.do(func() error { return h1.mesh.Apply(ctx, self, peers) })
	if got := ask(t, h1.container, h2.container, "10.40.2.5"); got != "10.40.1.5" {
		t.Errorf("after a block went: %q", got)
	}

	peers[0].Key = Key{}
	err := h1.conn.Do(func() error { return h1.mesh.Apply(ctx, self, peers) })
	if err == nil || !strings.Contains(err.Error(), "published no WireGuard key") {
		t.Errorf("%v", err)
	}
	h1.unreachable("without a key", "10.40.2.5:9")
	if _, err := h1.conn.Link(DefaultWireDevice); !nl.IsNotFound(err) {
		t.Errorf("a device without peers: %v", err)
	}
	u.sync(h1, h1)
	if left := h1.list(t, "routes"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A network becomes encrypted, and a foreign route is in the way of a peer's block. The former, unencrypted route is
// removed all the same.
func TestWireForeignRoute(t *testing.T) {
	needWireGuard(t)
	l := newLab(t)
	h1, h2 := l.hosts[0], l.hosts[1]
	setup{Routes, "46"}.all(h1, h2)
	h1.sh("ip route add 10.40.2.0/28 via 192.0.2.3")
	u := setup{WireGuard, "46"}
	err := h1.conn.Do(func() error { return h1.mesh.Apply(ctx, u.self(h1), u.peers(h1, h2)) })
	if !errors.Is(err, ErrForeignRoute) {
		t.Errorf("%v", err)
	}
	if out := h1.sh("ip route get 10.40.2.77 || true"); strings.Contains(out, "dev") {
		t.Errorf("not encrypted: %s", out)
	}
}

// Clear removes the device, and so does gc when the agent is gone. A foreign link with the same name stays, and
// nothing is sent in clear text.
func TestWireClear(t *testing.T) {
	needWireGuard(t)
	l := newLab(t)
	u := setup{WireGuard, "46"}
	h := l.hosts[0]
	before := h.snapshot()
	u.sync(h, l.hosts...)
	if h.snapshot() == before {
		t.Fatal("the snapshot shows nothing of a mesh")
	}
	h.do(func() error { return h.mesh.Clear(ctx, Self{}) })
	if after := h.snapshot(); after != before {
		t.Errorf("after Clear:\n%swas\n%s", after, before)
	}
	h.mesh.opts.Wanted = t.TempDir() + "/gone"
	u.sync(h, l.hosts...)
	h.do(func() error {
		list, err := h.mesh.Stale()
		if err != nil || len(list) != 1 {
			return fmt.Errorf("stale: %v, %w", list, err)
		}
		return h.mesh.Remove(ctx, list[0])
	})
	if after := h.snapshot(); after != before {
		t.Errorf("after gc:\n%swas\n%s", after, before)
	}

	h.bridge(DefaultWireDevice)
	err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts...)) })
	if err == nil || !strings.Contains(err.Error(), "make link patchbay-wg: a link of this name exists and is not ours") {
		t.Errorf("%v", err)
	}
	h.unreachable("without the device", "10.40.2.5:9")
}
