// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// greedy takes all places that one client gets.
func greedy(s *Server, from string) (n int) {
	for s.forward.begin(s.client("blue", netip.MustParseAddr(from), true)) {
		n++
	}
	return n
}

// A container has, or forges, many addresses. It gets the places of one client. All addresses
// without a known port get the places of one client together.
func TestPlacesOfOnePort(t *testing.T) {
	s := &Server{Ports: func(_ string, addr netip.Addr) int {
		switch last := addr.As4()[3]; {
		case last < 10:
			return 7
		case last < 20:
			return int(last)
		}
		return 0
	}}
	for _, at := range []string{"10.40.1.2", "10.40.1.90"} {
		s.forward = forwarder{}
		n := 0
		for range 5 {
			n += greedy(s, at)
			at = netip.MustParseAddr(at).Next().String()
		}
		if n != (maxForwards-maxConns)/(partOfFree+1) {
			t.Errorf("those up to %s have %d places", at, n)
		}
		if greedy(s, "10.40.1.11") == 0 {
			t.Error("there is none for another container")
		}
	}
}

// After a dozen greedy clients, the next one still gets a place.
func TestPlacesLeft(t *testing.T) {
	s := &Server{}
	addr := netip.MustParseAddr("10.40.1.2")
	for n := range 12 {
		if greedy(s, addr.String()) == 0 {
			t.Fatalf("none is left after %d", n)
		}
		addr = addr.Next()
	}
}

// The places of a client are taken, perhaps by forged datagrams. TCP still serves it, because no
// program can forge an address there.
func TestForgedQueries(t *testing.T) {
	good := newUpstream(t, "127.0.1.1:53", address("192.0.2.80"))
	s := &Server{View: testBook(), Upstreams: []netip.AddrPort{good.at}, Ports: func(_ string, addr netip.Addr) int { return int(addr.As4()[3]) }}
	for n := range 250 {
		greedy(s, netip.AddrFrom4([4]byte{10, 40, 1, byte(n)}).String())
	}
	h, from := handler{s, "blue"}, netip.MustParseAddr("10.40.1.7")
	if reply := h.reply(query("www.example.org", dns.TypeA), from, true); !reply.Truncated || reply.Rcode != dns.RcodeSuccess {
		t.Errorf("by UDP: %v", reply)
	}
	if reply := h.reply(query("www.example.org", dns.TypeA), from, false); len(reply.Answer) != 1 {
		t.Errorf("by TCP: %v", reply)
	}
}
