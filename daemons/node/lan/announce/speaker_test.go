// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// lan is a LAN: a bridge in a namespace, a client in another one, and two links of this namespace as the uplinks of two nodes.
//
//	client c0 ──┐
//	  up1 ──── bridge (namespace lan)
//	  up2 ──────┘
//
// The addresses are local here, so that servers can listen on them, but no link has them: the kernel does not answer for them.
type lan struct {
	*testing.T
	client *netns.NS
	in     *netlink.Handle // of the client's namespace
	macs   map[string]net.HardwareAddr
}

var addresses = []netip.Addr{netip.MustParseAddr("10.9.0.50"), netip.MustParseAddr("fd00:9::50")}

func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{T: t, macs: map[string]net.HardwareAddr{}}
	bridge, client := open(t, nettest.NewNS(t, "lan")), open(t, nettest.NewNS(t, "client"))
	l.client, l.in = client.ns, client.Handle
	must(t, bridge.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}))
	bridge.up(t, "br")
	here := handle{Handle: &netlink.Handle{}}
	sysctl(t, "net/ipv4/conf/all/arp_ignore", "1")
	sysctl(t, "net/ipv6/ip_nonlocal_bind", "1")
	for _, path := range []string{"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter"} {
		sysctl(t, path, "0")
	}
	for i, name := range []string{"c0", "up1", "up2"} {
		end := here
		if name == "c0" {
			end = client
		}
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "port" + name}))
		l.move("port"+name, bridge)
		bridge.enslave(t, "port"+name)
		if name == "c0" {
			l.move(name, client)
		}
		end.address(t, name, fmt.Sprintf("10.9.0.%d/24", i+1), fmt.Sprintf("fd00:9::%d/64", i+1))
		end.up(t, name)
		l.macs[name] = end.link(t, name).Attrs().HardwareAddr
		if name != "c0" {
			t.Cleanup(func() { must(t, netlink.LinkDel(here.link(t, name))) })
		}
	}
	l.anyIP()
	return l
}

// anyIP makes the addresses local.
func (l *lan) anyIP() {
	lo, err := netlink.LinkByName("lo")
	must(l.T, err)
	for _, a := range addresses {
		r := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		}
		must(l.T, netlink.RouteAdd(r))
		l.Cleanup(func() { must(l.T, netlink.RouteDel(r)) })
	}
}

func (l *lan) move(name string, to handle) {
	l.Helper()
	link, err := netlink.LinkByName(name)
	must(l.T, err)
	must(l.T, netlink.LinkSetNsFd(link, int(to.ns.Fd())))
}

type handle struct {
	*netlink.Handle
	ns *netns.NS
}

func open(t *testing.T, path string) handle {
	t.Helper()
	ns, err := netns.Open(path)
	must(t, err)
	h, err := netlink.NewHandleAt(vishnetns.NsHandle(ns.Fd()))
	must(t, err)
	t.Cleanup(func() { h.Close(); must(t, ns.Close()) })
	return handle{h, ns}
}

func (h handle) link(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := h.LinkByName(name)
	must(t, err)
	return link
}

func (h handle) up(t *testing.T, name string) {
	t.Helper()
	must(t, h.LinkSetUp(h.link(t, name)))
}

func (h handle) enslave(t *testing.T, name string) {
	t.Helper()
	must(t, h.LinkSetMaster(h.link(t, name), h.link(t, "br")))
	h.up(t, name)
}

func (h handle) address(t *testing.T, name string, list ...string) {
	t.Helper()
	for _, text := range list {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, h.AddrAdd(h.link(t, name), a))
	}
}

func sysctl(t *testing.T, path, value string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/"+path, []byte(value), 0))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// speaker is a Speaker that runs on a link, and owns what the test says.
type speaker struct {
	*Speaker
	mu        sync.Mutex
	owned     map[netip.Addr]bool
	conflicts []string
}

func (l *lan) speak(link string) *speaker {
	s := &speaker{}
	s.Speaker = New(func(a netip.Addr) bool { s.mu.Lock(); defer s.mu.Unlock(); return s.owned[a] },
		func(a netip.Addr, by net.HardwareAddr) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.conflicts = append(s.conflicts, a.String()+" "+by.String())
		})
	ctx, cancel := context.WithCancel(l.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx, link) }()
	l.Cleanup(func() { cancel(); must(l.T, <-done) })
	return s
}

// own says what a node owns by Lease now. told says whether the speaker is told, too.
func (s *speaker) own(told bool, list ...netip.Addr) {
	set := map[netip.Addr]bool{}
	for _, a := range list {
		set[a] = true
	}
	s.mu.Lock()
	s.owned = set
	s.mu.Unlock()
	if told {
		s.Set(set)
	}
}

// forget removes the client's entry for an address, so that it asks again.
func (l *lan) forget(a netip.Addr) {
	for _, n := range l.neighbours(a) {
		must(l.T, l.in.NeighDel(&n))
	}
}

func (l *lan) neighbours(a netip.Addr) (list []netlink.Neigh) {
	l.Helper()
	link, err := l.in.LinkByName("c0")
	must(l.T, err)
	all, err := l.in.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	must(l.T, err)
	for _, n := range all {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == a {
			list = append(list, n)
		}
	}
	return list
}

// at reports whether the client sends what is for an address to a link.
func (l *lan) at(a netip.Addr, link string) bool {
	list := l.neighbours(a)
	return len(list) == 1 && bytes.Equal(list[0].HardwareAddr, l.macs[link])
}

// dial opens a connection of the client to a server at an address.
func (l *lan) dial(a netip.Addr, limit time.Duration) error {
	return l.client.Do(func() error {
		ctx, cancel := context.WithTimeout(l.Context(), limit)
		defer cancel()
		c, err := (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, 80).String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not", what)
		}
	}
}

func serve(t *testing.T, a netip.Addr) {
	s, err := net.Listen("tcp", netip.AddrPortFrom(a, 80).String())
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
}

// TestSpeaker: a client of the LAN reaches an address at the node that owns it, follows it to another node, and gets no answer if nobody owns it.
func TestSpeaker(t *testing.T) {
	l := newLAN(t)
	one, two := l.speak("up1"), l.speak("up2")
	for _, a := range addresses {
		serve(t, a)
		if err := l.dial(a, 300*time.Millisecond); err == nil {
			t.Errorf("%s is reached before anybody owns it", a)
		}
		l.forget(a)
		one.own(true, a)
		eventually(t, "joined or announced", func() bool { _, said := one.Counts(); return said > 0 })
		must(t, l.dial(a, 5*time.Second))
		if !l.at(a, "up1") {
			t.Errorf("the client knows %s as %v", a, l.neighbours(a))
		}
		one.own(true)
		began := time.Now()
		two.own(true, a)
		eventually(t, "the client has moved", func() bool { return l.at(a, "up2") })
		t.Logf("%s moved in %v", a, time.Since(began))
		must(t, l.dial(a, 5*time.Second))

		two.own(false) // its Lease has ended, and the speaker was not told
		l.forget(a)
		before, _ := two.Counts()
		if err := l.dial(a, 300*time.Millisecond); err == nil {
			t.Errorf("%s is reached although its Lease has ended", a)
		}
		if now, _ := two.Counts(); now != before {
			t.Errorf("%d answers for %s, whose Lease has ended", now-before, a)
		}
		two.own(true)
	}
}

// TestProbe: a neighbour that asks this node alone whether its entry still holds gets an answer.
func TestProbe(t *testing.T) {
	l := newLAN(t)
	s := l.speak("up1")
	s.own(true, addresses...)
	link, err := l.in.LinkByName("c0")
	must(t, err)
	for _, a := range addresses {
		eventually(t, "announced", func() bool { _, said := s.Counts(); return said >= int64(len(addresses)) })
		before, _ := s.Counts()
		must(t, l.in.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice(), HardwareAddr: l.macs["up1"], State: netlink.NUD_PROBE}))
		eventually(t, "reachable", func() bool { n := l.neighbours(a); return len(n) == 1 && n[0].State == netlink.NUD_REACHABLE })
		if after, _ := s.Counts(); after == before {
			t.Errorf("no answer to a probe for %s", a)
		}
	}
}

// TestWanted: a host that wants the address for itself learns that it is taken (RFC 5227; RFC 4862, 5.4).
func TestWanted(t *testing.T) {
	l := newLAN(t)
	s := l.speak("up1")
	s.own(true, addresses...)
	eventually(t, "announced", func() bool { _, said := s.Counts(); return said >= int64(len(addresses)) })
	link, err := l.in.LinkByName("c0")
	must(t, err)
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addresses[1].AsSlice(), Mask: net.CIDRMask(64, 128)}}
	must(t, l.in.AddrAdd(link, a))
	eventually(t, "found to be a duplicate", func() bool {
		list, err := l.in.AddrList(link, netlink.FAMILY_V6)
		must(t, err)
		for _, a := range list {
			if a.IP.Equal(addresses[1].AsSlice()) {
				return a.Flags&unix.IFA_F_DADFAILED != 0
			}
		}
		return false
	})
}

// TestConflict: a host that has the address, too, is noticed.
func TestConflict(t *testing.T) {
	l := newLAN(t)
	s := l.speak("up1")
	s.own(true, addresses...)
	eventually(t, "announced", func() bool { _, said := s.Counts(); return said >= int64(len(addresses)) })
	other := l.speak("up2")
	other.own(true, addresses[0])
	want := addresses[0].String() + " " + l.macs["up2"].String()
	eventually(t, "noticed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conflicts) > 0 && s.conflicts[0] == want
	})
}

// TestDeleted: Run ends with an error when the link is deleted, and does not begin on links that have no Ethernet address.
func TestDeleted(t *testing.T) {
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "gone"}, PeerName: "gone2"}))
	link, err := netlink.LinkByName("gone")
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	s := New(func(netip.Addr) bool { return true }, nil)
	done := make(chan error)
	go func() { done <- s.Run(t.Context(), "gone") }()
	s.Set(map[netip.Addr]bool{addresses[0]: true})
	eventually(t, "announced as often as it is", func() bool { _, said := s.Counts(); return said == int64(len(repeats())) })
	must(t, netlink.LinkDel(link))
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on")
	}
	for _, name := range []string{"lo", "nothing"} {
		if err := s.Run(t.Context(), name); err == nil {
			t.Errorf("no error on %s", name)
		}
	}
}

// TestBadPackets: what is no request for an address is ignored.
func TestBadPackets(t *testing.T) {
	good := message{Operation: request, Target: addresses[0].As4()}.bytes()
	for cut := range good {
		if _, err := parse(good[:cut]); err == nil {
			t.Errorf("%d bytes are a message", cut)
		}
	}
	for i := range 6 { // kind and length of addresses
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := parse(bad); err == nil {
			t.Errorf("with another byte %d it is a message", i)
		}
	}
	if m, err := parse(good); err != nil || m.Target != addresses[0].As4() {
		t.Errorf("got %v, %v", m, err)
	}
}
