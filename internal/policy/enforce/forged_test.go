// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// forger is a pair whose client also has the address of another pod, and an address of its link.
type forger struct {
	*pair
	heard map[string]net.PacketConn // by the address of the listener
	sent  int
}

func newForger(t *testing.T) *forger { return newForgerWith(t, Options{}) }

func newForgerWith(t *testing.T, opts Options) *forger {
	p := newPair(t, opts)
	f := &forger{pair: p, heard: map[string]net.PacketConn{}}
	f.address(p.client, "eth0", "10.1.1.3/32", "fd01::1:3/128", "fe80::a/64")
	f.address(p.node, "v0", "fe80::b/64")
	f.address(p.node, "lo", "10.9.0.1/32", "fd09::1/128")
	for addr, h := range map[string]*house{
		"10.1.1.2": p.server, "fd01::1:2": p.server, "10.9.0.1": p.node, "fd09::1": p.node, "fe80::b%v0": p.node,
	} {
		must(t, h.Do(func() (err error) {
			f.heard[addr], err = net.ListenPacket("udp", net.JoinHostPort(addr, "80"))
			return err
		}))
		t.Cleanup(func() { f.heard[addr].Close() }) //nolint:errcheck // a test
	}
	return f
}

func (f *forger) address(h *house, link string, prefixes ...string) {
	f.t.Helper()
	l, err := h.Link(link)
	must(f.t, err)
	for _, p := range prefixes {
		must(f.t, h.AddrReplace(l, &netlink.Addr{IPNet: prefix(netip.MustParsePrefix(p)), Flags: unix.IFA_F_NODAD}))
	}
}

// passes reports whether a datagram of the client arrives.
func (f *forger) passes(from, to, listener string) bool {
	f.t.Helper()
	var conn net.Conn
	must(f.t, f.client.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
		conn, err = d.Dial("udp", net.JoinHostPort(to, "80"))
		return err
	}))
	defer conn.Close() //nolint:errcheck // a test
	f.sent++
	text := fmt.Sprint(from, " ", f.sent) // one of another call may come late
	for range 3 {
		_, err := conn.Write([]byte(text))
		must(f.t, err)
		must(f.t, f.heard[listener].SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		b := make([]byte, 64)
		for {
			n, _, err := f.heard[listener].ReadFrom(b)
			if err == nil && string(b[:n]) == text {
				return true
			}
			if err != nil {
				break
			}
		}
	}
	return false
}

const (
	fromC = onB + `{"from":[{"podSelector":{"matchLabels":{"pod":"c"}}}]}]}`
	toB   = onA + `{"to":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`
)

// A pod cannot get the rights of another pod, or of an address outside of the cluster, by forging
// the source of its packets.
func TestForgedSource(t *testing.T) {
	f := newForger(t)
	cases := []struct {
		policies     []string
		from, to, at string
		checked      bool // whether it passes if sources are checked; it always passes if they are not
	}{
		{[]string{fromC}, "10.1.1.3", "10.1.1.2", "10.1.1.2", false},
		{[]string{fromC}, "fd01::1:3", "fd01::1:2", "fd01::1:2", false},
		{[]string{toB}, "10.1.1.3", "10.9.0.1", "10.9.0.1", false},
		{[]string{toB}, "fd01::1:3", "fd09::1", "fd09::1", false},
		{[]string{toB}, "fe80::a%eth0", "fe80::b%eth0", "fe80::b%v0", false},
		{[]string{toB}, "10.1.1.1", "10.1.1.2", "10.1.1.2", true},
		{[]string{toB}, "fd01::1:1", "fd01::1:2", "fd01::1:2", true},
		{[]string{fromC}, "10.1.1.1", "10.9.0.1", "10.9.0.1", true},
	}
	for _, c := range cases {
		f.load(c.policies...)
		if !f.passes(c.from, c.to, c.at) {
			t.Errorf("%s -> %s does not pass although no source is checked", c.from, c.to)
		}
	}
	f.attach()
	for _, c := range cases {
		f.load(c.policies...)
		if got := f.passes(c.from, c.to, c.at); got != c.checked {
			t.Errorf("%s -> %s: passes: %v, want %v", c.from, c.to, got, c.checked)
		}
	}
}

// attach lets the agent know the client, which has the addresses of pod a.
func (f *forger) attach() {
	f.t.Helper()
	a, _ := closureOf("a", addrs("10.1.1.1", "fd01::1:1")...)
	a.Link = "v0"
	f.enforcer.Attach([]Closure{a})
}

// gc and doctor know the owners of the agent's elements, also of those of an earlier release.
func TestCheckedLinksHaveOwners(t *testing.T) {
	f := newForger(t)
	_, key := closureOf("a")
	fw := f.enforcer.fw
	for _, earlier := range []bool{false, true} {
		f.load(fromC)
		f.attach()
		must(t, f.node.Do(func() error {
			if earlier {
				old := nft.Sources("v0", "", nil, string(key))
				fw.Remove(nft.Sources("v0", "", nil, "")...)
				must(t, fw.Commit(t.Context()))
				fw.Add(old...)
			}
			return fw.Commit(t.Context())
		}))
		f.load(toB)
		must(t, f.node.Do(func() error {
			nobodys, err := fw.Ownerless()
			must(t, err)
			list, err := ClosedBy(fw, string(key))
			if len(nobodys) > 0 || len(list) != 5 {
				t.Errorf("nobody's are %v, the attachment's %v", nobodys, list)
			}
			return err
		}))
	}
}

// An ADD has the sources of its pod checked. DEL undoes it.
func TestForgedSourceOfANewPod(t *testing.T) {
	f := newForger(t)
	a, _ := closureOf("a", addrs("10.1.1.1", "fd01::1:1")...)
	a.Link = "v0"
	fw := f.enforcer.fw
	do := func(work func()) {
		t.Helper()
		must(t, f.node.Do(func() error { work(); return fw.Commit(t.Context()) }))
	}
	for _, policies := range [][]string{nil, {fromC}} {
		f.load(policies...)
		a.Close = [2]bool{}
		do(func() { Close(fw, a, false) })
		if f.passes("10.1.1.3", "10.1.1.2", "10.1.1.2") {
			t.Errorf("with %d policies, a new pod without policies sends from another pod's address", len(policies))
		}
		do(func() { Reopen(fw, a) })
		if !f.passes("10.1.1.3", "10.1.1.2", "10.1.1.2") {
			t.Error("the source of a removed pod is checked")
		}
	}
	a.Close = bothSides
	do(func() { Close(fw, a, false) })
	if f.passes("10.1.1.3", "10.9.0.1", "10.9.0.1") || f.passes("fe80::a%eth0", "fe80::b%eth0", "fe80::b%v0") {
		t.Error("a closed pod sends from an address that is not its own")
	}
	must(t, f.node.Do(func() error {
		list, err := ClosedBy(fw, string(owner.Of("pods", "a", "eth0")))
		for _, e := range nft.Sources("v0", "", a.Addrs, "") {
			if !slices.ContainsFunc(list, e.SameKey) {
				t.Errorf("without a record, DEL does not find %v in %v", e, list)
			}
		}
		return err
	}))
}
