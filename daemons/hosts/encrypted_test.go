// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/wire"
)

// A host that cannot encrypt has no peers of an encrypted network, and refuses packets to it. A peer without a
// key, or with a damaged key, has no peers either. The configuration refuses packets before the agent runs.
func TestCompileEncrypted(t *testing.T) {
	n := lan()
	n.Name, n.Transport, n.Subnets = "secret", store.WireGuard, prefixes("10.210.0.0/16")
	block := func(network, node, p string) store.Block {
		return store.Block{Network: network, Node: node, Prefix: netip.MustParsePrefix(p)}
	}
	key := mesh.Key{7}
	w := world{
		Networks: []store.Network{lan(), n},
		Nodes:    []store.Node{{ID: "me"}, {ID: "b", WireGuardKey: key.String(), WireGuardPort: 9}, {ID: "c", WireGuardKey: "x"}},
		Blocks: []store.Block{
			block("lan", "me", "10.200.1.0/24"), block("lan", "b", "10.200.2.0/24"),
			block("secret", "me", "10.210.1.0/24"), block("secret", "b", "10.210.2.0/24"), block("secret", "c", "10.210.3.0/24"),
		},
	}
	f := thisHost{
		self: store.Node{ID: "me", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}, uplink: 1500,
		runs: func(string, netip.Prefix) bool { return false }, hinders: func(*store.Network) error { return nil },
	}
	for _, plain := range []bool{false, true} {
		f.plain = plain
		d := compile(&w, &f)
		var peers []string
		for _, p := range d.peers {
			peers = append(peers, fmt.Sprintf("%s%v %s %v %d", p.ID, p.Blocks, p.Transport, p.Key == key, p.WirePort))
		}
		want := []string{"b[10.200.2.0/24] auto true 9", "b[10.210.2.0/24] wireguard true 9", "c[10.210.3.0/24] wireguard false 0"}
		if plain {
			want = want[:1]
		}
		if !slices.Equal(peers, want) {
			t.Errorf("peers %q, want %q", peers, want)
		}
		for _, x := range d.self.Subnets {
			if encrypted := x.Network == "secret"; x.Encrypted != encrypted || x.Closed != encrypted {
				t.Errorf("%+v", x)
			}
		}
		conf := string(d.confs["secret"].text)
		if !strings.Contains(conf, `"unreachable": [`) || !strings.Contains(conf, `"mtu": 1440`) || strings.Contains(string(d.confs["lan"].text), "unreachable") {
			t.Errorf("configurations %s\n%s", conf, d.confs["lan"].text)
		}
	}
}

// A host publishes its key with its first record, and also when its agent starts again: the other hosts would
// send nothing to it without a key.
func TestKeyStaysPublished(t *testing.T) {
	s := openStore(t)
	n := lan()
	n.Transport = store.WireGuard
	must(t, Admin{s}.Create(t.Context(), n))
	_, at, err := s.Nodes().List(t.Context(), "")
	must(t, err)
	h := newHost(t, s, 1)
	h.key = mesh.Key{7}
	var seen time.Time
	for range 2 {
		h.start()
		h.block("lan")
		until(t, "another record", func() bool {
			now, err := s.Nodes().Get(t.Context(), h.agent.ID())
			news := err == nil && now.Object.Seen.After(seen)
			seen = now.Object.Seen
			return news
		})
		h.stop()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	records := 0
	for e, err := range s.Nodes().Watch(ctx, at) {
		if err != nil {
			break // the time is over
		}
		if records++; e.Object.WireGuardKey != h.key.String() || e.Object.WireGuardPort != wirePort {
			t.Errorf("%+v", e.Object)
		}
	}
	if records < 2 {
		t.Errorf("%d records", records)
	}
}

// Hosts without WireGuard send nothing to an encrypted network, and drop unencrypted packets for it. The other
// network works. Containers with addresses of a removed network still send nothing.
func TestEncryptedWithoutWireGuard(t *testing.T) {
	s, a, b := wired(t)
	a.mute, b.mute = true, true
	seen := b.Capture()
	a.start()
	secret := a.container("secret")
	a.reports("this kernel has no WireGuard")
	until(t, "the network is refused", func() bool {
		return a.Send(secret, b.Host, netip.MustParseAddr("10.210.254.5"), "a secret") != nil && a.hasRoute("10.210.0.0/16")
	})
	refused(t, "before another host is known", a.Send(secret, b.Host, netip.MustParseAddr("10.210.254.5"), "a secret"))
	b.start()
	there, from, to := b.container("secret"), a.container("open"), b.container("open")
	until(t, "the open network works", func() bool { return a.Send(from, b.Host, to, "an open text") == nil })
	refused(t, "to the other host", a.Send(secret, b.Host, there, "a secret"))
	refused(t, "back", b.Send(there, a.Host, secret, "a secret"))
	packets := seen()
	if wire.Readable(packets, []byte("an open text")) == 0 || wire.Readable(packets, []byte("a secret"), there.AsSlice()) > 0 {
		t.Errorf("of %d packets, %d can be read, and %d must not", len(packets), wire.Readable(packets, []byte("an open text")), wire.Readable(packets, []byte("a secret"), there.AsSlice()))
	}

	heard := b.hears(there)
	for _, way := range []netlink.Route{{Gw: netip.MustParseAddr("192.0.2.2").AsSlice()}, a.routeTo(to)} { // on the uplink, and in the tunnel
		way.Dst = nl.IPNet(netip.PrefixFrom(there, 32))
		must(t, a.Conn.RouteReplace(&way))
		for _, from := range []netip.Addr{secret, from, netip.MustParseAddr("192.0.2.1")} {
			a.throw(from, there, "plain from "+from.String())
			if text := heard(); text != "" {
				t.Errorf("heard %q", text)
			}
		}
	}
	b.nft("flush", "chain", "inet", "patchbay", "plain_hosts")
	a.throw(from, there, "heard without the rules")
	if text := heard(); text != "heard without the rules" {
		t.Errorf("heard %q", text)
	}
	must(t, a.Conn.RouteDel(&netlink.Route{Dst: nl.IPNet(netip.PrefixFrom(there, 32))}))

	must(t, Admin{s}.Remove(t.Context(), "secret", true))
	until(t, "the network is gone", func() bool { return len(a.applied.Load().Subnets) == 1 })
	refused(t, "after the network was removed", a.Send(secret, b.Host, there, "a secret"))
}

// Two hosts publish their keys, and their containers reach each other. No packet of the encrypted network can
// be read, also while a key is missing, after the agent was killed and without its device. The packets of the
// other network can.
func TestEncryptedHosts(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("wireguard"))
	s, a, b := wired(t)
	b.mute = true
	seen := b.Capture()
	a.start()
	b.start()
	secret, there, from, to := a.container("secret"), b.container("secret"), a.container("open"), b.container("open")
	a.reports("peer host2 (" + b.agent.ID() + "): it has published no WireGuard key")
	until(t, "the open network works", func() bool { return a.Send(from, b.Host, to, "an open text") == nil })
	refused(t, "without a key", a.Send(secret, b.Host, there, "a secret"))

	b.stop()
	b.mute = false
	b.start()
	until(t, "traffic", func() bool { return a.Send(secret, b.Host, there, "a secret") == nil })
	must(t, b.Send(there, a.Host, secret, strings.Repeat("a secret", 1000))) // in packets of the full MTU
	must(t, a.Send(netip.Addr{}, b.Host, there, "a secret"))                 // from a process of the host
	must(t, a.Send(from, b.Host, to, "an open text"))
	a.stop()
	must(t, a.Send(secret, b.Host, there, "a secret"))
	device, err := a.Conn.Link(mesh.DefaultWireDevice)
	must(t, err)
	must(t, a.Conn.LinkDel(device))
	refused(t, "without the device", a.Send(secret, b.Host, there, "a secret"))
	a.start()
	until(t, "traffic again", func() bool { return a.Send(secret, b.Host, there, "a secret") == nil })
	packets, encrypted := seen(), 0
	for _, p := range packets {
		if len(p) > 24 && p[0]>>4 == 4 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == wirePort {
			encrypted++
		}
	}
	open, leaked := wire.Readable(packets, []byte("an open text")), wire.Readable(packets, []byte("a secret"), secret.AsSlice(), there.AsSlice())
	if open == 0 || encrypted == 0 || leaked > 0 {
		t.Errorf("of %d packets, %d are of the open network, %d are encrypted, and %d can be read", len(packets), open, encrypted, leaked)
	}
	nodes, _, err := list(t.Context(), s.Nodes(), "")
	must(t, err)
	for _, n := range order.Values(nodes) {
		if n.WireGuardKey == "" || n.WireGuardPort != wirePort {
			t.Errorf("%+v", n)
		}
	}
	at, err := os.Stat(KeyDir(paths.Paths{State: a.dir + "/state"}) + "/" + wirekey.File)
	if err != nil || at.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", at, err)
	}
}
