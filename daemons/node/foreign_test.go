// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/wire"
)

// old returns the old network's route to the other node's pods.
func (n *liveNode) old(family int) *netlink.Route {
	n.Helper()
	other := 3 - n.Number
	link, err := n.Conn.Link("old0")
	must(n.T, err)
	dst, via := fmt.Sprintf("10.244.%d.0/24", other), fmt.Sprintf("198.51.100.%d", other)
	if family == 6 {
		dst, via = fmt.Sprintf("fd00:244:0:%x::/64", other), fmt.Sprintf("2001:db8:5::%d", other)
	}
	return &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: nl.IPNet(netip.MustParsePrefix(dst)), Gw: netip.MustParseAddr(via).AsSlice(), Protocol: 3,
	}
}

// obstructed reports whether the agent reports that a foreign route is in the way.
func (n *liveNode) obstructed() bool {
	return strings.Contains(n.trouble.mine()[meshFailed], mesh.ErrForeignRoute.Error())
}

// TestForeignRouteGoes: an old network's routes stand in the way of ours and carry the packets.
// They disappear in each possible way: its agent, its device or its address is removed. The agents
// add their own routes at once, not at the next regular check. It prints how long the pods had no
// answer.
func TestForeignRouteGoes(t *testing.T) {
	for _, family := range []int{4, 6} {
		for what, remove := range map[string]func(*liveNode, netlink.Link) error{
			"route":   func(n *liveNode, _ netlink.Link) error { return n.Conn.RouteDel(n.old(family)) },
			"link":    func(n *liveNode, l netlink.Link) error { return n.Conn.LinkDel(l) }, // and with it the other end
			"down":    func(n *liveNode, l netlink.Link) error { return n.Conn.LinkSetDown(l) },
			"address": func(n *liveNode, l netlink.Link) error { return n.withdraw(l, family) },
		} {
			if family == 6 && what == "address" {
				continue // an IPv6 route stays when its link's address goes
			}
			if family == 6 && what != "route" && !draw.All(t) {
				continue // the kernel reports each removal of an IPv6 route
			}
			t.Run(fmt.Sprintf("%s of IPv%d", what, family), func(t *testing.T) { foreignRouteGoes(t, family, remove) })
		}
	}
}

// withdraw removes a link's addresses of a family.
func (n *liveNode) withdraw(l netlink.Link, family int) error {
	list, err := n.Conn.AddrList(l, map[int]int{4: netlink.FAMILY_V4, 6: netlink.FAMILY_V6}[family])
	for i := range list {
		if err == nil {
			err = n.Conn.AddrDel(l, &list[i])
		}
	}
	return err
}

func foreignRouteGoes(t *testing.T, family int, remove func(*liveNode, netlink.Link) error) {
	a, b := newLiveNodes(t)
	wire.Cable(a.Host, b.Host, "old0", "198.51.100.0/24", "2001:db8:5::/64")
	for _, n := range []*liveNode{a, b} {
		n.again = time.Hour // no check without a change
		must(t, n.Conn.RouteAdd(n.old(family)))
		n.runs(mesh.Auto)
	}
	for _, n := range []*liveNode{a, b} {
		n.await("a report of the route", n.obstructed)
	}
	p := newProbe(a, b, family)
	p.flows("by the old network")
	a.rest()
	quiet := p.look("by the old network")
	for _, n := range []*liveNode{a, b} {
		if link, err := n.Conn.Link("old0"); !nl.IsNotFound(err) {
			must(t, err)
			must(t, remove(n, link))
		}
	}
	p.flows("by our routes")
	slow := time.Duration(max(a.longest.Load(), b.longest.Load())) // an agent pauses after a check, on a busy machine for long
	if gone := p.look("by our routes"); gone > max(retryEvery/3, 40*slow) {
		t.Errorf("no answer for %v; while nothing changed, for %v; the longest Apply took %v", gone, quiet, slow)
	}
	a.await("no trouble", func() bool { return !a.obstructed() })
}

// TestForeignRouteComes: another program puts its route in the place of ours. The agent reports
// that at once, and leaves the route alone in each check. When the route is removed, the agent adds
// its own again.
func TestForeignRouteComes(t *testing.T) {
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			a, b := newLiveNodes(t)
			wire.Cable(a.Host, b.Host, "old0", "198.51.100.0/24", "2001:db8:5::/64")
			a.again = 30 * resident.Settle(0) // rest sees no check meanwhile
			a.runs(mesh.Auto)
			b.runs(mesh.Auto)
			p := newProbe(a, b, family)
			p.flows("by our routes")
			theirs := a.old(family)
			if family == 6 {
				theirs.Priority = 7 // preferred to our route; with our metric, both routes would share the packets
			}
			a.rest()
			began := time.Now()
			must(t, a.Conn.RouteReplace(theirs))
			a.await("a report", a.obstructed)
			if took := time.Since(began); took > reconcileEvery/4 {
				t.Errorf("reported after %v", took)
			}
			a.rest()
			changed := a.watched()
			looks := a.applies.Load()
			a.await("two more looks", func() bool { return a.applies.Load() >= looks+2 })
			if events := changed(); len(events) > 0 {
				t.Errorf("the agent changed routes: %v", events)
			}
			must(t, a.Conn.RouteDel(theirs))
			a.await("no trouble", func() bool { return !a.obstructed() })
			p.flows("by our routes again")
		})
	}
}

// watched lists the changes of routes to the other node's pods until the result is called.
func (n *liveNode) watched() (events func() []netlink.RouteUpdate) {
	n.Helper()
	all, done := make(chan netlink.RouteUpdate, 1<<16), make(chan struct{})
	must(n.T, n.Conn.Do(func() error { return netlink.RouteSubscribe(all, done) }))
	return func() (list []netlink.RouteUpdate) {
		close(done)
		for len(all) > 0 {
			if u := <-all; slices.Contains([]netip.Prefix{nl.PrefixOf(n.old(4).Dst), nl.PrefixOf(n.old(6).Dst)}, nl.PrefixOf(u.Dst)) {
				list = append(list, u)
			}
		}
		return list
	}
}

// rest waits until the agent no longer checks the kernel because of earlier changes.
func (n *liveNode) rest() {
	n.Helper()
	n.await("rest", func() bool {
		before := n.applies.Load()
		time.Sleep(10 * resident.Settle(0))
		return n.applies.Load() == before
	})
}

// TestRouteStorm: other programs add and remove many routes. Routes to other destinations do not
// make the agent check the kernel. Routes to other nodes' pods do, but the agent pauses in between.
// In the end its routes are right.
func TestRouteStorm(t *testing.T) {
	a, b := newLiveNodes(t)
	wire.Cable(a.Host, b.Host, "other0", "203.0.113.0/24")
	other, err := a.Conn.Link("other0")
	must(t, err)
	a.runs(mesh.Auto)
	b.runs(mesh.Auto)
	p := newProbe(a, b, 4)
	p.flows("at first")
	changes := draw.Number(t, "PATCHBAY_ROUTE_STORM", 1500, 5000)
	storm := func(base [4]byte, bits, pause int) time.Duration {
		began := time.Now()
		for n := range changes {
			if n%pause == pause-1 {
				time.Sleep(probeEvery)
			}
			base[3] = byte(n) << (32 - bits)
			r := &netlink.Route{LinkIndex: other.Attrs().Index, Dst: nl.IPNet(netip.PrefixFrom(netip.AddrFrom4(base), bits)), Scope: netlink.SCOPE_LINK}
			must(t, a.Conn.RouteAdd(r))
			must(t, a.Conn.RouteDel(r))
		}
		return time.Since(began)
	}
	a.rest()
	before := a.applies.Load()
	took := storm([4]byte{10, 99, 0, 0}, 32, 50) // without pauses, the socket of a user without root overflows
	time.Sleep(5 * resident.Settle(0))
	t.Logf("%d changes elsewhere in %v: %d looks", 2*changes, took, a.applies.Load()-before)
	if n := a.applies.Load() - before; n > 2 { // the kernel reports a change of carrier late
		t.Errorf("%d looks", n)
	}
	before = a.applies.Load()
	took = storm([4]byte{10, 244, 2, 0}, 25, changes)
	a.await("a look", func() bool { return a.applies.Load() > before })
	a.await("no trouble", func() bool { return !a.obstructed() })
	a.rest()
	looks := a.applies.Load() - before
	t.Logf("%d changes in a block of another node in %v: %d looks", 2*changes, took, looks)
	if most := int64(took/resident.Settle(0)) + 5; looks == 0 || looks > most {
		t.Errorf("%d looks, want some, and at most %d", looks, most)
	}
	p.flows("in the end")
}
