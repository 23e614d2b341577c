// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the contract of package store, as tests that each engine runs:
//
//	storetest.Run(t, func(t *testing.T) storetest.Engine { ... })
package storetest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// Engine is a new, empty store with ways to damage it.
type Engine struct {
	// Open opens the store once more, as another process would.
	Open func() store.Store
	// Put writes raw data in the place of an object: another schema, garbage.
	Put func(table, key string, data []byte)
	// Compact forgets all changes up to now.
	Compact func()
}

// patience is how long a test waits for what must happen; the machine may be busy.
const patience = 30 * time.Second

// Run runs the suite; place makes a new Engine for each test.
func Run(t *testing.T, place func(t *testing.T) Engine) {
	for _, c := range []struct {
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
		{"Unreadable", (*suite).unreadable},
		{"UnreadableInWatch", (*suite).unreadableInWatch},
		{"LeaseEnds", (*suite).leaseEnds},
		{"LeaseOfMany", (*suite).leaseOfMany},
		{"LeaseIsKept", (*suite).leaseIsKept},
		{"LeaseIsLost", (*suite).leaseIsLost},
		{"LeaseOfAnother", (*suite).leaseOfAnother},
		{"OneBlockOneWinner", (*suite).oneWinner},
		{"Counters", (*suite).counters},
		{"WatchersAgree", (*suite).watchersAgree},
		{"Closed", (*suite).closed},
		{"Context", (*suite).context},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			e := place(t)
			c.test(&suite{T: t, ctx: ctx, engine: e, s: opened(t, e)})
		})
	}
}

// suite is one test.
type suite struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // of the test
	engine Engine
	s      store.Store
}

func opened(t *testing.T, e Engine) store.Store {
	t.Helper()
	s := e.Open()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// another opens the store once more.
func (s *suite) another() store.Store {
	s.Helper()
	return opened(s.T, s.engine)
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

// network, node, block and endpoint return objects with every field set.
func network(name string) store.Network {
	return store.Network{
		Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")},
		BlockBits4: 24, BlockBits6: 64, Transport: store.Auto, MTU: 1400, Plugins: raw(`{"type":"firewall"}`, `{"type":"portmap","x":[1,"<&>"]}`),
	}
}

func node(id string) store.Node {
	return store.Node{
		ID: id, Name: "host-" + id, Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		VTEP: "02:00:00:00:00:01", Port: 8472, Seen: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func block(network, prefix, node string) store.Block {
	return store.Block{Network: network, Prefix: netip.MustParsePrefix(prefix), Node: node}
}

func endpoint(network, node, id string) store.Endpoint {
	return store.Endpoint{
		Network: network, Node: node, ID: id, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00:1::3")},
		MAC: "02:00:00:00:00:02", Container: "c0ffee", Names: []string{"web", "web.example", "käse"},
	}
}
