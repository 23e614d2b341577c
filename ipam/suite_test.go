// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/ipam"
)

// run runs the suite on an empty store.
func run(t *testing.T, store func(t *testing.T) *ipam.FileStore) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { c.run(&suite{t, store(t)}) })
	}
}

type testCase struct {
	name string
	run  func(*suite)
}

func cases() []testCase {
	return []testCase{
		{"round robin", roundRobin},
		{"full and released", fullAndReleased},
		{"wraps through the ranges of a set", wraps},
		{"a failure takes nothing", allOrNothing},
		{"requested addresses", requested},
		{"duplicate allocation", duplicate},
		{"a repeated ADD of the dead keeps its address", repeatedDead},
		{"release is repeatable", releaseTwice},
		{"collect", collect},
		{"dry", dry},
		{"status", status},
		{"IPv6", sixes},
		{"many callers", manyCallers},
	}
}

type suite struct {
	*testing.T
	store *ipam.FileStore
}

// Set parses ranges of the form "start-end@subnet", or plain subnets, into a canonical set.
func Set(t testing.TB, ranges ...string) ipam.RangeSet {
	t.Helper()
	var set ipam.RangeSet
	for _, s := range ranges {
		ends, subnet, ok := strings.Cut(s, "@")
		if !ok {
			ends, subnet = "", s
		}
		start, end, _ := strings.Cut(ends, "-")
		r, err := ipam.ParseRange(subnet, start, end, "")
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, r)
	}
	if err := set.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	return set
}

func (s *suite) tx(fn func(tx *ipam.Tx)) {
	s.Helper()
	tx, err := s.store.Begin(context.Background(), ipam.Write)
	if err != nil {
		s.Fatal(err)
	}
	defer tx.Close()
	fn(tx)
}

func owner(n int) ipam.Holder { return ipam.Holder{ID: fmt.Sprintf("c%d", n), IfName: "eth0"} }

func (s *suite) add(req *ipam.Request) (addrs []string, err error) {
	s.Helper()
	s.tx(func(tx *ipam.Tx) {
		var leases []ipam.Grant
		leases, err = ipam.Allocate(tx, req)
		for _, l := range leases {
			addrs = append(addrs, l.Address.Addr().String())
		}
	})
	return addrs, err
}

func (s *suite) want(n int, addr string, sets ...ipam.RangeSet) {
	s.Helper()
	got, err := s.add(&ipam.Request{Holder: owner(n), Sets: sets})
	if err != nil || strings.Join(got, " ") != addr {
		s.Fatalf("c%d got %v, %v, want %s", n, got, err, addr)
	}
}

func (s *suite) fails(req *ipam.Request, text string) {
	s.Helper()
	if got, err := s.add(req); err == nil || err.Error() != text {
		s.Fatalf("got %v, error %v\nwant error %s", got, err, text)
	}
}

func (s *suite) release(n int) (out []string) {
	s.Helper()
	s.tx(func(tx *ipam.Tx) {
		rs, err := ipam.Release(tx, owner(n), nil)
		if err != nil {
			s.Fatal(err)
		}
		for _, r := range rs {
			out = append(out, r.Addr.String())
		}
	})
	slices.Sort(out)
	return out
}

func roundRobin(s *suite) {
	set := Set(s, "10.1.0.0/24")
	s.want(1, "10.1.0.2", set)
	s.want(2, "10.1.0.3", set)
	s.release(1)
	s.want(3, "10.1.0.4", set)
}

func fullAndReleased(s *suite) {
	set := Set(s, "10.1.0.0/29")
	for n := 2; n <= 6; n++ {
		s.want(n, fmt.Sprintf("10.1.0.%d", n), set)
	}
	req := &ipam.Request{Holder: owner(7), Sets: []ipam.RangeSet{set}}
	s.fails(req, "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.6")
	if _, err := s.add(req); !errors.Is(err, ipam.ErrExhausted) {
		s.Fatalf("%v is not ErrExhausted", err)
	}
	s.release(4)
	s.want(7, "10.1.0.4", set)
}

func wraps(s *suite) {
	set := Set(s, "10.1.0.2-10.1.0.3@10.1.0.0/24", "10.2.0.0/30", "10.1.0.9-10.1.0.10@10.1.0.0/24")
	for n, a := range []string{"10.1.0.2", "10.1.0.3", "10.2.0.2", "10.1.0.9", "10.1.0.10"} {
		s.want(n, a, set)
	}
	s.release(2)
	s.release(0)
	s.want(5, "10.1.0.2", set)
	s.want(6, "10.2.0.2", set)
}

func allOrNothing(s *suite) {
	a, b := Set(s, "10.1.0.0/24"), Set(s, "10.2.0.0/30")
	s.want(1, "10.2.0.2", b)
	s.fails(&ipam.Request{Holder: owner(2), Sets: []ipam.RangeSet{a, b}},
		"failed to allocate for range 1: no IP addresses available in range set: 10.2.0.1-10.2.0.2")
	if left := s.release(2); left != nil {
		s.Fatalf("left %v", left)
	}
}

func requested(s *suite) {
	a, b := Set(s, "10.1.0.0/24"), Set(s, "10.2.0.0/24")
	ask := func(n int, addrs ...string) *ipam.Request {
		req := &ipam.Request{Holder: owner(n), Sets: []ipam.RangeSet{a, b}}
		for _, x := range addrs {
			req.Requested = append(req.Requested, netip.MustParseAddr(x))
		}
		return req
	}
	got, err := s.add(ask(1, "10.2.0.9", "10.2.0.9", "10.1.0.7"))
	if err != nil || strings.Join(got, " ") != "10.1.0.7 10.2.0.9" {
		s.Fatal(got, err)
	}
	s.fails(ask(2, "10.2.0.9"), "failed to allocate for range 1: requested IP address 10.2.0.9 is not available in range set 10.2.0.1-10.2.0.254")
	s.fails(ask(2, "10.1.0.1"), "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway")
	s.fails(ask(2, "10.3.0.1", "10.1.0.50"), "failed to allocate all requested IPs: 10.3.0.1")
	s.fails(ask(2, "10.1.0.50", "10.1.0.51"), "failed to allocate all requested IPs: 10.1.0.51")
	if left := s.release(2); left != nil {
		s.Fatalf("left %v", left)
	}
}

func duplicate(s *suite) {
	set := Set(s, "10.1.0.0/24")
	s.want(1, "10.1.0.2", set)
	s.fails(&ipam.Request{Holder: owner(1), Sets: []ipam.RangeSet{set}},
		"failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed")
	other := ipam.Holder{ID: "c1", IfName: "eth1"}
	if got, err := s.add(&ipam.Request{Holder: other, Sets: []ipam.RangeSet{set}}); err != nil || got[0] != "10.1.0.3" {
		s.Fatal(got, err)
	}
}

func repeatedDead(s *suite) {
	set := Set(s, "10.1.0.0/24")
	s.want(1, "10.1.0.2", set)
	gone := func(r ipam.Reservation) bool { return r.Holder == owner(1) }
	req := &ipam.Request{Holder: owner(1), Sets: []ipam.RangeSet{set}, Gone: gone}
	for range 2 {
		if got, err := s.add(req); err != nil || got[0] != "10.1.0.2" {
			s.Fatal(got, err)
		}
	}
	req.Requested = []netip.Addr{netip.MustParseAddr("10.1.0.2")}
	if got, err := s.add(req); err != nil || got[0] != "10.1.0.2" {
		s.Fatal(got, err)
	}
	if got := s.release(1); len(got) != 1 {
		s.Fatal(got)
	}
}

func releaseTwice(s *suite) {
	s.want(1, "10.1.0.2 fd00::2", Set(s, "10.1.0.0/24"), Set(s, "fd00::/64"))
	if got := s.release(1); strings.Join(got, " ") != "10.1.0.2 fd00::2" {
		s.Fatal(got)
	}
	if got := s.release(1); got != nil {
		s.Fatal(got)
	}
}

func collect(s *suite) {
	set := Set(s, "10.1.0.0/24")
	for n := range 10 {
		s.want(n, fmt.Sprintf("10.1.0.%d", n+2), set)
	}
	s.tx(func(tx *ipam.Tx) {
		dead, err := gc(tx, func(o ipam.Holder) bool { return o == owner(3) || o == owner(7) })
		if err != nil || len(dead) != 8 {
			s.Fatal(dead, err)
		}
		left, err := tx.List(false)
		if err != nil || len(left) != 2 || left[0].Holder != owner(3) || left[1].Holder != owner(7) {
			s.Fatal(left, err)
		}
	})
}

func dry(s *suite) {
	set := Set(s, "10.1.0.0/30")
	req := &ipam.Request{Holder: owner(1), Sets: []ipam.RangeSet{set}, Dry: true}
	for range 2 {
		tx, err := s.store.Begin(context.Background(), ipam.ReadOnly)
		if err != nil {
			s.Fatal(err)
		}
		got, err := ipam.Allocate(tx, req)
		tx.Close()
		if err != nil || got[0].Address.String() != "10.1.0.2/30" || got[0].Gateway.String() != "10.1.0.1" {
			s.Fatal(got, err)
		}
	}
	s.want(2, "10.1.0.2", set)
	s.fails(req, "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2")
}

func status(s *suite) {
	sets := []ipam.RangeSet{Set(s, "fd00::/64"), Set(s, "10.1.0.0/30")}
	s.tx(func(tx *ipam.Tx) {
		if err := ipam.Status(tx, sets, nil); err != nil {
			s.Fatal(err)
		}
	})
	s.want(1, "10.1.0.2", sets[1])
	s.tx(func(tx *ipam.Tx) {
		err := ipam.Status(tx, sets, nil)
		if !errors.Is(err, ipam.ErrExhausted) || err.Error() != "range 1: no IP addresses available in range set: 10.1.0.1-10.1.0.2" {
			s.Fatal(err)
		}
	})
}

func sixes(s *suite) {
	set := Set(s, "fd00:1::ffff:fffe-fd00:1::1:0:1@fd00:1::/64")
	for n, a := range []string{"fd00:1::ffff:fffe", "fd00:1::ffff:ffff", "fd00:1::1:0:0", "fd00:1::1:0:1"} {
		s.want(n, a, set)
	}
	s.release(1)
	s.want(9, "fd00:1::ffff:ffff", set)
}

func manyCallers(s *suite) {
	set := Set(s, "10.1.0.0/24")
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			got, err := s.add(&ipam.Request{Holder: owner(n), Sets: []ipam.RangeSet{set}})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[got[0]] {
				s.Errorf("c%d: %v, %v", n, got, err)
				return
			}
			seen[got[0]] = true
		})
	}
	wg.Wait()
}

// gc releases the addresses of every owner for which keep returns false.
func gc(tx *ipam.Tx, keep func(ipam.Holder) bool) (gone []ipam.Reservation, err error) {
	owners, err := ipam.Stale(tx, keep)
	for o := range owners {
		released, rerr := ipam.Release(tx, o, nil)
		gone, err = append(gone, released...), errors.Join(err, rerr)
	}
	return gone, err
}
