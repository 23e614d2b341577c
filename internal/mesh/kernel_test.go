// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

func TestRoutes(t *testing.T) {
	for _, underlay := range []string{"46", "6"} {
		t.Run(underlay, func(t *testing.T) {
			l := newLab(t)
			u := setup{Routes, underlay}
			u.all(l.hosts[:3]...)
			talk(t, l.hosts[:3]...)
			quiet(t, u, l.hosts[:3]...)
		})
	}
}

// The transport routes refuses a host behind a router, and no other host.
func TestRoutesBehindRouter(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	for _, h := range l.hosts[:2] {
		err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts...)) })
		if err == nil || !strings.Contains(err.Error(), "node-4: no route to 10.40.4.0/24") || strings.Contains(err.Error(), "node-3") {
			t.Errorf("%v", err)
		}
	}
	talk(t, l.hosts[:2]...)
}

func TestVXLAN(t *testing.T) {
	needVXLAN(t)
	underlays := []string{"46"} // the others are in TestOffload and TestPath
	if draw.All(t) {
		underlays = []string{"4", "6", "46"}
	}
	for _, underlay := range underlays {
		t.Run(underlay, func(t *testing.T) {
			l := newLab(t)
			u := setup{VXLAN, underlay}
			u.all(l.hosts...)
			talk(t, l.hosts...)
			quiet(t, u, l.hosts...)
		})
	}
}

// Some hosts have both families and some have one. Hosts that need both have two devices.
func TestMixedUnderlay(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	of := map[*host]string{l.hosts[0]: "46", l.hosts[1]: "4", l.hosts[2]: "6"}
	hosts := []*host{l.hosts[0], l.hosts[1], l.hosts[2]}
	for _, h := range hosts {
		u := setup{VXLAN, of[h]}
		var peers []Peer
		for _, p := range hosts {
			peers = append(peers, setup{VXLAN, of[p]}.peers(h, p)...)
		}
		err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), peers) })
		if h == l.hosts[0] {
			must(t, err)
		} else if err == nil || !strings.Contains(err.Error(), "no family in common") {
			t.Errorf("host %d: %v", h.number, err)
		}
	}
	talk(t, l.hosts[0], l.hosts[1])
	talk(t, l.hosts[0], l.hosts[2])
	l.hosts[0].link(DefaultDevice)
	l.hosts[0].link(DefaultDevice + "6")
}

func TestAuto(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{Auto, "46"}
	u.all(l.hosts...)
	talk(t, l.hosts...)
	quiet(t, u, l.hosts...)
	if n := len(l.hosts[0].list(t, "neigh")); n != 1 {
		t.Errorf("host 1 has %d tunnels, and one host is behind the router", n)
	}
}

// A connection outlives all changes of the mesh around it.
func TestStream(t *testing.T) {
	transports := []Transport{Routes}
	if u := needsVXLAN(); u == nil {
		transports = append(transports, VXLAN, Auto, Routes)
	}
	l := newLab(t)
	h1, h2, h3 := l.hosts[0], l.hosts[1], l.hosts[2]
	for _, h := range []*host{h1, h2} {
		h.sysctl("net/ipv4/conf/all/rp_filter", "1") // the strict value that distributions set
	}
	setup{Routes, "46"}.all(h1, h2, h3)
	four := connect(t, h1.container, h2.container, "10.40.2.5")
	six := connect(t, h1.container, h2.container, "fd40:2::5")
	survives := func(what string) {
		t.Helper()
		for _, s := range []*stream{four, six} {
			if err := s.echo(what); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	survives("at first")
	for _, transport := range transports {
		u := setup{transport, "46"}
		u.all(h1, h2)
		survives(string(transport))
		u.all(h1, h2, h3)
		survives("a peer came")
		h1.mesh.Close()
		h1.open()
		u.all(h1, h2)
		survives("a peer left, and the agent started again")
	}
}

// needsVXLAN returns nil on a kernel with VXLAN.
func needsVXLAN() error { return nettestVXLAN().Probe() }

// A peer gets another address, leaves and comes back.
func TestPeerMoves(t *testing.T) {
	for _, transport := range []Transport{Routes, VXLAN} {
		t.Run(string(transport), func(t *testing.T) {
			if transport == VXLAN {
				needVXLAN(t)
			}
			l := newLab(t)
			u := setup{transport, "4"}
			if transport == Routes {
				u.underlay = "46"
			}
			h1, h2 := l.hosts[0], l.hosts[1]
			u.all(h1, h2)
			talk(t, h1, h2)
			index := h2.deviceIndex()

			h2.renumber("192.0.2.22", "2001:db8:1::22")
			u.all(h2, h1)
			talk(t, h1, h2)
			if now := h2.deviceIndex(); now != index {
				t.Errorf("the device was made anew: %d, %d", index, now)
			}

			u.sync(h1, h1) // the peer left
			if left := h1.list(t, "routes"); len(left) != 0 {
				t.Errorf("routes to a host that left: %v", left)
			}
			if left := append(h1.list(t, "neigh"), h1.list(t, "fdb")...); len(left) != 0 {
				t.Errorf("tunnels to a host that left: %v", left)
			}
			u.sync(h1, h2)
			talk(t, h1, h2)
		})
	}
}

// One Sync adds what is new, changes what exists and removes what is left over.
func TestPeersSwap(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "4"}
	h, two, three, four := l.hosts[0], l.hosts[1], l.hosts[2], l.hosts[3]
	at2, at3 := two.underlay4(), three.underlay4()
	for _, step := range []struct {
		name string
		want map[*host]netip.Addr
	}{
		{"two", map[*host]netip.Addr{two: at2, three: at3}},
		{"one leaves, one comes, one stays", map[*host]netip.Addr{three: at3, four: at2}},
		{"another stays, at another address", map[*host]netip.Addr{two: at2, four: at3}},
		{"they change places", map[*host]netip.Addr{two: at3, four: at2}},
		{"one is where the other was, which left", map[*host]netip.Addr{two: at2}},
		{"none", nil},
	} {
		var peers []Peer
		var fdb, neigh []string
		for p, at := range step.want {
			mac := VTEP(p.id())
			peers = append(peers, Peer{ID: p.id(), Underlay: []netip.Addr{at}, Blocks: p.blocks(), Transport: VXLAN})
			fdb, neigh = append(fdb, fmt.Sprint(nl.FDBEntry{MAC: mac, Remote: at})), append(neigh, NextHop(mac).String())
		}
		h.do(func() error { return h.mesh.Apply(ctx, u.self(h), peers) })
		for what, want := range map[string][]string{"fdb": fdb, "neigh": neigh} {
			got := h.list(t, what)
			slices.Sort(want)
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: %s %v, want %v", step.name, what, got, want)
			}
		}
	}
}

func TestForeign(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	h := l.hosts[0]
	apply := func() error {
		return h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts[:3]...)) })
	}
	for _, tc := range []struct{ dst, via, block string }{
		{"10.40.2.0/24", "192.0.2.254", "10.40.2.0/24"},
		{"10.40.2.0/25", "192.0.2.254", "10.40.2.0/24"},
		{"fd40:2::/64", "2001:db8:1::fe", "fd40:2::/64"},
	} {
		t.Run(tc.dst, func(t *testing.T) {
			p := netip.MustParsePrefix(tc.dst)
			theirs := &netlink.Route{Dst: nl.IPNet(p), Gw: netip.MustParseAddr(tc.via).AsSlice(), Protocol: 4, Priority: 7}
			must(t, h.conn.RouteAdd(theirs))
			defer func() { must(t, h.conn.RouteDel(theirs)) }()
			err := apply()
			if err == nil || !strings.Contains(err.Error(), tc.block) || !strings.Contains(err.Error(), "a foreign route is in the way: "+tc.dst) {
				t.Errorf("%v", err)
			}
			if n := len(h.list(t, "routes")); n != 3 {
				t.Errorf("%d routes of ours, want those of 3 other blocks", n)
			}
			h.do(func() error { return h.mesh.Clear(ctx, Self{}) })
			got, err := h.conn.RouteListFiltered(netlink.FAMILY_ALL, theirs, netlink.RT_FILTER_DST)
			if err != nil || len(got) != 1 || got[0].Protocol != 4 {
				t.Errorf("their route: %v, %v", got, err)
			}
		})
	}
	must(t, apply())
}

// A route of ours must change, but another program's route is in the way. Our route stays unchanged
// until the other one is gone.
func TestForeignKeepsOurs(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	h, peer := l.hosts[0], l.hosts[1]
	apply := func() error {
		return h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, peer)) })
	}
	via := func(when, want string) {
		t.Helper()
		if got := strings.Join(h.list(t, "routes"), "\n"); !strings.Contains(got, "Dst: 10.40.2.0/24 Src: 10.40.1.1 Gw: "+want+" ") {
			t.Errorf("%s: not by %s:\n%s", when, want, got)
		}
	}
	must(t, apply())
	part := netip.MustParsePrefix("10.40.2.0/25")
	theirs := &netlink.Route{Dst: nl.IPNet(part), Gw: netip.MustParseAddr("192.0.2.254").AsSlice(), Protocol: 4}
	must(t, h.conn.RouteAdd(theirs))
	peer.moved4 = "192.0.2.77"
	if err := apply(); !errors.Is(err, ErrForeignRoute) {
		t.Error(err)
	}
	via("refused", "192.0.2.2")
	must(t, h.conn.RouteDel(theirs))
	must(t, apply())
	via("allowed", "192.0.2.77")
	h.do(func() error { return h.mesh.Apply(ctx, u.self(h), nil) })
	if got := h.list(t, "routes"); len(got) > 0 {
		t.Errorf("no peer, and yet %v", got)
	}
}

// A block lies inside the network of a link of the host. The neighbours there keep their addresses.
func TestAmidNeighbours(t *testing.T) {
	l := newLab(t)
	u := setup{Routes, "46"}
	h := l.hosts[0]
	h.addr("eth0", "10.40.2.200/23", "fd40:2::7/48")
	err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts[1])) })
	for _, want := range []string{"in the way: 10.40.2.0/23 dev eth0", "in the way: fd40:2::/48 dev eth0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if got := h.list(t, "routes"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A link has our name but is not ours; it stays. A link of ours with other parameters is
// replaced. A link of ours with the same parameters is not.
func TestDevice(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{VXLAN, "4"}
	h := l.hosts[0]
	h.bridge(DefaultDevice)
	err := h.conn.Do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, l.hosts...)) })
	if err == nil || !strings.Contains(err.Error(), "make link patchbay-vx: a link of this name exists and is not ours") {
		t.Errorf("%v", err)
	}
	must(t, h.conn.LinkDel(h.link(DefaultDevice)))

	self, was := u.self(h), 0
	for _, step := range []struct {
		name   string
		change func()
		anew   bool
	}{
		{"first", func() {}, true},
		{"again", func() {}, false},
		{"MTU", func() { self.MTU = 1400 }, false},
		{"address", func() { self.VTEP = VTEP("another") }, false},
		{"port", func() { self.Port = 8472 }, true},
		{"VNI", func() { self.VNI = 77 }, true},
	} {
		step.change()
		h.do(func() error { return h.mesh.Apply(ctx, self, u.peers(h, l.hosts...)) })
		if now := h.deviceIndex(); (now != was) != step.anew {
			t.Errorf("%s: index %d, was %d", step.name, now, was)
		} else {
			was = now
		}
	}
	at := h.link(DefaultDevice).Attrs()
	if at.MTU != 1400 || at.HardwareAddr.String() != self.VTEP.String() || at.Alias != "patchbay-mesh:112.hosts" {
		t.Errorf("%+v", at)
	}
	// as if a kill had come before the alias was written
	must(t, h.conn.LinkSetDown(h.link(DefaultDevice)))
	must(t, h.conn.LinkSetAlias(h.link(DefaultDevice), ""))
	h.do(func() error { return h.mesh.Apply(ctx, self, u.peers(h, l.hosts...)) })
	if now := h.deviceIndex(); now != was {
		t.Errorf("a device that was nearly finished was made anew")
	}
}
