// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/hosts/store"
)

// place is a new, empty store.
type place struct {
	o     Options
	admin *Engine // of the same etcd
}

// put writes raw data in the place of an object: another schema, garbage.
func (p *place) put(t *testing.T, table, key string, data []byte) {
	must(t, p.admin.call(t.Context(), func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, "/patchbay/v1/"+p.o.Cluster+"/"+table+"/"+key, string(data))
		return err
	}))
}

// runContract is the contract of package store, as tests, on any etcd.
func runContract(t *testing.T, o Options) {
	admin, n := open(t, o), 0
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
			n++
			of := o
			of.Cluster += fmt.Sprint(n)
			c.test(&suite{T: t, ctx: ctx, place: place{of, admin}, s: open(t, of)})
		})
	}
}

// suite is one test.
type suite struct {
	*testing.T
	ctx context.Context //nolint:containedctx // of the test
	place
	s store.Store
}

// another opens the store once more.
func (s *suite) another() store.Store {
	s.Helper()
	return open(s.T, s.o)
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

func endpoint(network, node, id string) store.Entry {
	return store.Entry{
		Network: network, Node: node, ID: id, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00:1::3")},
		MAC: "02:00:00:00:00:02", Container: "c0ffee", Names: []string{"web", "web.example", "käse"},
	}
}
