// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/store"
)

// BenchmarkApply is one look at 500 hosts with 50 containers each, after one
// container came.
func BenchmarkApply(b *testing.B) {
	dir := b.TempDir()
	a, err := New(Options{
		Store: nil, Name: "me", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: dir + "/net.d", DataRoot: dir,
		Paths: paths.Paths{State: dir + "/state", CNI: dir + "/cni", Proc: "/proc"}, TTL: time.Second, Reclaim: time.Hour, DNS: []string{"*"},
		Fabric: &fakeFabric{}, Log: func(string, ...any) {},
	})
	must(b, err)
	wide := lan()
	wide.Subnets = prefixes("10.200.0.0/14")
	m := &a.mirror
	m.heard = [4]bool{true, true, true, true}
	m.tables = tables{map[string]store.Network{"lan": wide}, map[string]store.Node{}, map[string]store.Block{}, map[string]store.Endpoint{}}
	for n := range 500 {
		id := fmt.Sprintf("%016x", n)
		block := nth(wide.Subnets[0], 24, uint64(n))
		m.nodes[id] = store.Node{ID: id, Name: id, Underlay: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(2 + n/250), byte(n % 250)})}}
		m.blocks[id] = store.Block{Network: "lan", Prefix: block, Node: id}
		for c := range 50 {
			e := store.Endpoint{Network: "lan", ID: fmt.Sprint(c), Node: id, Addrs: []netip.Addr{nth(block, 32, uint64(c+2)).Addr()}, Names: []string{fmt.Sprint("web", n, "-", c), fmt.Sprint("alias", c)}}
			m.endpoints[e.Key()] = e
		}
	}
	for i := 0; b.Loop(); i++ {
		m.endpoints["one"] = store.Endpoint{Network: "lan", ID: "one", Node: "x", Names: []string{fmt.Sprint(i)}}
		a.apply(context.Background(), false)
	}
}
