// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package storetest tests that an engine keeps the contract of package store: etcd, and the store in
// memory that agents have in tests (daemons/test/chaos).
package storetest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// Place is a new, empty store.
type Place interface {
	// Open opens it once more, until the test ends.
	Open(t testing.TB) store.Store
	// Put writes raw data in the place of an object: another schema, garbage.
	Put(t testing.TB, table, key string, data []byte)
	// Compact makes it forget all changes up to now.
	Compact(t testing.TB)
}

// patience is how long a test waits for what must happen; the machine may be busy.
const patience = 60 * time.Second

// tests are the contract, with LeaseIsKept.
var tests = []struct {
	name string
	test func(*suite)
}{
	{"Tables", (*suite).tables},
	{"CreateOnce", (*suite).createOnce},
	{"CompareAndSwap", (*suite).compareAndSwap},
	{"Delete", (*suite).delete},
	{"List", (*suite).list},
	{"Names", (*suite).names},
	{"ListThenWatch", (*suite).listThenWatch},
	{"WatchFromTheBeginning", (*suite).watchFromTheBeginning},
	{"WatchEnds", (*suite).watchEnds},
	{"WatchLeavesNothing", (*suite).watchLeavesNothing},
	{"Compacted", (*suite).compacted},
	{"Forked", (*suite).forked},
	{"Unreadable", (*suite).unreadable},
	{"UnreadableInWatch", (*suite).unreadableInWatch},
	{"LeaseEnds", (*suite).leaseEnds},
	{"LeaseOfMany", (*suite).leaseOfMany},
	{"LeaseIsLost", (*suite).leaseIsLost},
	{"LeaseOfAnother", (*suite).leaseOfAnother},
	{"OneBlockOneWinner", (*suite).oneWinner},
	{"Counters", (*suite).counters},
	{"WatchersAgree", (*suite).watchersAgree},
	{"Closed", (*suite).closed},
	{"Context", (*suite).context},
}

// Contract is a contract that is being tested on one engine.
type Contract struct {
	place func() Place
	kept  *kept
}

// Begin begins a lease of this ttl, which is watched while the tests run.
func Begin(t testing.TB, ttl time.Duration, place func() Place) *Contract {
	t.Helper()
	return &Contract{place: place, kept: beginKept(t, place(), ttl)}
}

// Run runs the tests. LeaseIsKept runs when all else has run, because it waits.
func (c *Contract) Run(t *testing.T) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			p := c.place()
			test.test(&suite{T: t, ctx: ctx, place: p, s: p.Open(t)})
		})
	}
}

// LeaseIsKept checks that an open store keeps its lease longer than the ttl, even if the machine stands
// still for a part of the ttl.
func (c *Contract) LeaseIsKept(t *testing.T) { c.kept.check(t) }

// suite is one test.
type suite struct {
	*testing.T
	ctx   context.Context //nolint:containedctx // of the test
	place Place
	s     store.Store
}

// another opens the store once more.
func (s *suite) another() store.Store {
	s.Helper()
	return s.place.Open(s.T)
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// create adds an object without a lease.
func create[T store.Object](s *suite, t store.Table[T], object T) store.Revision {
	s.Helper()
	r, err := t.Create(s.ctx, object, nil)
	s.must(err)
	return r
}

// Network returns a network with every field set.
func Network(name string) store.Network {
	return store.Network{
		Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")},
		BlockBits4: 24, BlockBits6: 64, Transport: store.Auto, MTU: 1400, Plugins: raw(`{"type":"firewall"}`, `{"type":"portmap","x":[1,"<&>"]}`),
	}
}

// node, block and endpoint do the same.
func node(id string) store.Node {
	return store.Node{
		ID: id, Name: "host-" + id, Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		VTEP: "02:00:00:00:00:01", Port: 8472, Seen: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func block(network, prefix, node string) store.Block {
	return store.Block{Network: network, Prefix: netip.MustParsePrefix(prefix), Node: node}
}

func endpoint(network, node, id string) store.Entry {
	return store.Entry{
		Network: network, Node: node, ID: id, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00:1::3")},
		MAC: "02:00:00:00:00:02", Container: "c0ffee", Names: []string{"web", "web.example", "käse"},
	}
}
