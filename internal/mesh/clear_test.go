// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// sh runs commands in a namespace and returns what they print.
func (s *space) sh(lines string) (out string) {
	s.t.Helper()
	must(s.t, s.conn.Do(func() error {
		cmd := exec.Command("sh", "-ec", lines)
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(s.t.TempDir(), "lock"))
		b, err := cmd.CombinedOutput()
		if out = string(b); err != nil {
			s.t.Logf("%s", b)
		}
		return err
	}))
	return out
}

// Docker's FORWARD policy does not stop packets of other hosts, even if Docker starts after the mesh.
func TestForwardDrop(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	l := newLab(t)
	u := setup{Routes, "46"}
	h1, h2 := l.hosts[0], l.hosts[1]
	u.all(h1, h2)
	h1.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP")
	h2.sh(`for i in iptables-nft ip6tables-nft; do $i -N DOCKER-USER; $i -A DOCKER-USER -j RETURN
		$i -A FORWARD -j DOCKER-USER; $i -P FORWARD DROP; done`)
	before := h2.sh("iptables-nft -S; ip6tables-nft -S")
	if c, err := h1.container.dial("10.40.2.5:9", 200*time.Millisecond); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Fatalf("without our rules: %v, %v", c, err)
	}
	u.all(h1, h2)
	talk(t, h1, h2)
	for to, want := range map[string]string{"10.40.2.5": "10.40.1.1", "fd40:2::5": "fd40:1::1"} {
		if got := ask(t, h1.space, h2.container, to); got != want {
			t.Errorf("a process of host 1 to %s: seen as %q, want %q", to, got, want)
		}
	}
	quiet(t, u, h1, h2)
	h2.do(func() error { return h2.mesh.Clear(ctx, Self{}) })
	if after := h2.sh("iptables-nft -S; ip6tables-nft -S"); after != before {
		t.Errorf("rules after Clear:\n%swere\n%s", after, before)
	}
}

// No rule in nftables can override such drops. They are reported once.
func TestLegacyDrop(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-legacy"))
	l := newLab(t)
	h := l.hosts[0]
	nettest.Need(t, nettest.Feature{Name: "iptables-legacy for this user", Probe: func() error {
		return h.conn.Do(func() error { return exec.Command("iptables-legacy", "-t", "filter", "-L").Run() })
	}})
	h.sh("iptables-legacy -P FORWARD DROP")
	u := setup{Routes, "46"}
	for range 2 {
		u.sync(h, l.hosts[:2]...)
	}
	if len(h.warned) != 1 || !strings.Contains(h.warned[0], "FORWARD of iptables-legacy drops") {
		t.Errorf("%q", h.warned)
	}
}

// snapshot returns all objects in a host's kernel that a mesh may have made.
func (h *host) snapshot() string {
	return h.sh("ip -o link | cut -d: -f2; ip route; ip -6 route; nft list sets | grep -A9 10.40 || true")
}

func TestClear(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	transport := VXLAN
	if nettestVXLAN().Probe() != nil {
		transport = Routes
	}
	l := newLab(t)
	u := setup{transport, "46"}
	h := l.hosts[0]
	h.do(func() error { return h.mesh.Clear(ctx, Self{}) }) // clears a mesh that never existed
	before := h.snapshot()
	u.sync(h, l.hosts[:3]...)
	if h.snapshot() == before {
		t.Fatal("the snapshot shows nothing of a mesh")
	}
	h.do(func() error { return h.mesh.Clear(ctx, Self{}) })
	if after := h.snapshot(); after != before {
		t.Errorf("after Clear:\n%swas\n%s", after, before)
	}
	for _, dir := range []string{"mesh", "shared"} {
		if left, err := os.ReadDir(filepath.Join(h.paths.Run, dir)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

// A host has a second mesh, and then a mesh with a changed protocol number. Neither removes
// anything of the other mesh.
func TestTwoMeshes(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	u := setup{Routes, "46"}
	u.sync(h, l.hosts[:3]...)
	other := u.self(h)
	other.Name, other.Protocol, other.Device = "k8s", 113, "kube-vx"
	other.Subnets = []Subnet{{Network: "pods", Prefix: netip.MustParsePrefix("10.41.0.0/16")}}
	other.Blocks = nil
	peers := u.peers(h, l.hosts[2])
	peers[0].Blocks[0], peers[0].Blocks = netip.MustParsePrefix("10.41.3.0/24"), peers[0].Blocks[:1]
	apply := func() { h.t.Helper(); h.do(func() error { return h.mesh.Apply(ctx, other, peers) }) }
	count := func(protocol uint8) int {
		list, err := h.mesh.ourRoutes(protocol)
		must(t, err)
		return len(list)
	}
	apply()
	if count(112) != 4 || count(113) != 1 {
		t.Errorf("%d and %d routes", count(112), count(113))
	}
	other.Protocol = 114
	apply()
	if count(112) != 4 || count(113) != 0 || count(114) != 1 {
		t.Errorf("after the number changed: %d, %d and %d routes", count(112), count(113), count(114))
	}
	h.do(func() error { return h.mesh.Clear(ctx, Self{Name: "k8s"}) })
	if count(112) != 4 || count(114) != 0 {
		t.Errorf("after Clear: %d and %d routes", count(112), count(114))
	}
	h.do(func() error { return h.mesh.Clear(ctx, Self{Name: "k8s", Protocol: 114}) })
	if count(112) != 4 {
		t.Errorf("after Clear of a mesh without a record, another one has %d routes", count(112))
	}
}

// A mesh is stale if its record is gone, or if the path in Options.Wanted is gone.
func TestStale(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	u := setup{Routes, "46"}
	state := t.TempDir() + "/agent"
	must(t, os.Mkdir(state, 0o700))
	stale := func() (list []Stale) {
		t.Helper()
		h.do(func() (err error) { list, err = h.mesh.Stale(); return err })
		return list
	}
	none := func(when string) {
		t.Helper()
		if list := stale(); len(list) > 0 {
			t.Errorf("%s: %+v", when, list)
		}
	}
	one := func(why string) Stale {
		t.Helper()
		list := stale()
		if len(list) != 1 || !strings.Contains(list[0].Why, why) {
			t.Fatalf("%+v, want one: %s", list, why)
		}
		return list[0]
	}
	none("nothing there")
	h.mesh.opts.Wanted = state
	u.sync(h, l.hosts[:3]...)
	none("wanted")
	must(t, os.Remove(state))
	seen := one("is gone, so its agent was removed")
	must(t, os.Mkdir(state, 0o700))
	h.do(func() error { return h.mesh.Remove(ctx, seen) })
	if len(h.list(t, "routes")) != 4 {
		t.Errorf("a mesh was removed that is wanted again")
	}
	must(t, os.Remove(recordPath(h.paths, DefaultName)))
	one("no record")
	must(t, os.RemoveAll(h.paths.Run))
	seen = one("no record") // found by the routes alone
	h.do(func() error { return h.mesh.Remove(ctx, seen) })
	none("removed")
	if left := h.list(t, "routes"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The kernel removes the routes of an uplink that goes down. Watch reports this, and the next
// Sync restores the routes.
func TestWatch(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	u := setup{Routes, "46"}
	u.all(l.hosts[:2]...)
	ctx, cancel := context.WithCancel(ctx)
	changed, ended := make(chan bool, 1000), make(chan error, 1)
	go func() { ended <- h.conn.Do(func() error { return h.mesh.Watch(ctx, func() { changed <- true }) }) }()
	h.awaitWatch(t, changed)
	must(t, l.hosts[0].mesh.conn.LinkSetDown(h.link("eth0")))
	must(t, l.hosts[0].mesh.conn.LinkSetUp(h.link("eth0")))
	reported(t, "the link", changed)
	cancel()
	must(t, <-ended)
	h.addr("eth0", "2001:db8:1::1/64") // the address went with the link
	u.sync(h, l.hosts[:2]...)
	talk(t, l.hosts[:2]...)
}

// If its socket overflows, Watch returns an error. The library reports the overflow and closes
// its channel, and Watch may see either first.
func TestWatchOverflows(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	u := setup{Routes, "46"}
	_, err := h.mesh.Observe(u.self(h), nil)
	must(t, err)
	ns, err := netns.Open(h.path)
	must(t, err)
	listener, err := nl.In(ns, "/proc") // a thread of its own: h's works meanwhile
	must(t, err)
	defer listener.Close()
	ctx, cancel := context.WithTimeout(ctx, 8*patience)
	defer cancel()
	for range draw.Number(t, "PATCHBAY_WATCH_OVERFLOWS", 3, 8) {
		changed, full, ended := make(chan bool, 1<<16), make(chan bool), make(chan error, 1)
		slow := func() {
			changed <- true
			<-full
			time.Sleep(20 * time.Millisecond) // the library finishes before the next check
		}
		go func() { ended <- listener.Do(func() error { return h.mesh.Watch(ctx, slow) }) }()
		h.awaitWatch(t, changed)
		for n := range 1000 { // the socket holds some 200 kB
			must(t, h.mesh.conn.LinkSetAlias(h.link("eth0"), strings.Repeat("x", 1+n%2)))
		}
		close(full)
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "watch links, routes and addresses: Receive failed: no buffer space") {
			t.Error(err)
		}
	}
}

func reported(t *testing.T, what string, changed <-chan bool) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(patience):
		t.Errorf("%s: no event", what)
	}
}

// A State with only tunnels uses no link, but the uplink still matters: Watch reports a new
// address from DHCP, or another MTU. While the bridge exists, routes use its address as the
// source for the host's processes.
func TestWatchAddresses(t *testing.T) {
	l := newLab(t)
	h := l.hosts[0]
	u := setup{Routes, "46"}
	before := netip.MustParsePrefix("10.40.1.1/24")
	must(t, h.conn.AddrDel(h.link("cni0"), &netlink.Addr{IPNet: nl.IPNet(before)}))
	_, err := h.mesh.Observe(u.self(h), nil) // no State uses a link
	must(t, err)
	ctx, cancel := context.WithCancel(ctx)
	changed, ended := make(chan bool, 1000), make(chan error, 1)
	ns, err := netns.Open(h.path)
	must(t, err)
	listener, err := nl.In(ns, "/proc") // a thread of its own: h's works meanwhile
	must(t, err)
	defer listener.Close()
	go func() { ended <- listener.Do(func() error { return h.mesh.Watch(ctx, func() { changed <- true }) }) }()
	h.awaitWatch(t, changed)
	must(t, h.mesh.conn.LinkSetMTU(h.link("eth0"), 1400))
	reported(t, "the MTU", changed)
	sources := func() (out string) {
		u.sync(h, l.hosts[:2]...)
		settled(t, u, h, l.hosts[:2]...)
		for len(changed) > 0 {
			<-changed
		}
		routes, err := h.mesh.ourRoutes(DefaultProtocol)
		must(t, err)
		for _, r := range routes {
			out += r.Dst.String() + " from " + nl.AddrOf(r.Src).String() + "\n"
		}
		return out
	}
	for _, step := range []struct{ link, add, remove, want string }{
		{"cni0", "10.40.1.1/24", "", "10.40.2.0/24 from 10.40.1.1"},
		{"cni0", "", "10.40.1.1/24", "10.40.2.0/24 from invalid IP"},
		{"eth0", "192.0.2.77/24", "", "10.40.2.0/24 from invalid IP"},
	} {
		sources()
		if step.add != "" {
			h.addr(step.link, step.add)
		} else {
			p := netip.MustParsePrefix(step.remove)
			must(t, h.conn.AddrDel(h.link(step.link), &netlink.Addr{IPNet: nl.IPNet(p)}))
		}
		reported(t, step.add+step.remove, changed)
		if got := sources(); !strings.Contains(got, step.want) || !strings.Contains(got, "fd40:2::/64 from fd40:1::1") {
			t.Errorf("%+v:\n%s", step, got)
		}
	}
	cancel()
	must(t, <-ended)
}

// awaitWatch waits until Watch reports a change of a link that the mesh uses.
func (h *host) awaitWatch(t *testing.T, changed <-chan bool) {
	t.Helper()
	end := time.After(patience)
	for n := 0; ; n++ {
		must(t, h.mesh.conn.LinkSetAlias(h.link("eth0"), strings.Repeat("x", 1+n%2)))
		select {
		case <-changed:
			for len(changed) > 0 {
				<-changed
			}
			return
		case <-time.After(20 * time.Millisecond):
		case <-end:
			t.Fatal("Watch reports nothing")
		}
	}
}

// settled checks that one more Sync of h changes nothing.
func settled(t *testing.T, u setup, h *host, hosts ...*host) {
	t.Helper()
	settle(t, h)
	if events := changes(t, u, h, hosts...); len(events) > 0 {
		t.Errorf("a second Sync changed something: %v", events)
	}
}
