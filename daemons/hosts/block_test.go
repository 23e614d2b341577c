// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, prefix(s))
	}
	return out
}

func TestNth(t *testing.T) {
	for _, c := range []struct {
		subnet string
		length int
		i      uint64
		want   string
	}{
		{"10.200.0.0/16", 24, 0, "10.200.0.0/24"},
		{"10.200.0.0/16", 24, 255, "10.200.255.0/24"},
		{"10.200.0.0/16", 30, 1, "10.200.0.4/30"},
		{"10.0.0.0/8", 32, 1<<24 - 1, "10.255.255.255/32"},
		{"fd00:1::/48", 64, 0xabcd, "fd00:1:0:abcd::/64"},
		{"fd00::/56", 72, 3, "fd00:0:0:0:300::/72"},
		{"fd00::/60", 68, 0xf7, "fd00:0:0:f:7000::/68"},
		{"fd00::/112", 126, 5, "fd00::14/126"},
	} {
		if got := nth(prefix(c.subnet), c.length, c.i); got != prefix(c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// The test chooses every block once, whatever the seed. Then none is left.
func TestFreeBlock(t *testing.T) {
	var taken []netip.Prefix
	for i := range 256 {
		b, ok := freeBlock(prefix("10.200.0.0/16"), 24, taken, fmt.Sprint("node", i))
		if !ok || slices.ContainsFunc(taken, b.Overlaps) {
			t.Fatalf("block %d: %v %v", i, b, ok)
		}
		taken = append(taken, b)
	}
	if b, ok := freeBlock(prefix("10.200.0.0/16"), 24, taken, "late"); ok {
		t.Errorf("one too many: %v", b)
	}
	if b, ok := freeBlock(prefix("10.200.0.0/16"), 24, prefixes("10.200.0.0/17"), "x"); !ok || !prefix("10.200.128.0/17").Overlaps(b) {
		t.Errorf("beside a larger one: %v %v", b, ok)
	}
}

// Two seeds seldom choose the same block: about 5 of 50 in 256 blocks.
func TestFreeBlockSeldomCollides(t *testing.T) {
	seen := map[netip.Prefix]int{}
	for i := range 50 {
		b, _ := freeBlock(prefix("10.200.0.0/16"), 24, nil, fmt.Sprintf("%016x lan", i*7919))
		seen[b]++
	}
	if len(seen) < 40 {
		t.Errorf("50 nodes chose %d blocks", len(seen))
	}
}

func TestHolding(t *testing.T) {
	n := &store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/16", "fd00::/48"), BlockBits4: 24, BlockBits6: 64}
	block := func(p, node string) store.Block { return store.Block{Network: "lan", Prefix: prefix(p), Node: node} }
	mine4, mine6, other := block("10.200.3.0/24", "me"), block("fd00:0:0:3::/64", "me"), block("10.200.4.0/24", "you")
	for _, c := range []struct {
		name       string
		blocks     []store.Block
		remembered []netip.Prefix
		want       holding
	}{
		{"nothing", nil, nil, holding{missing: n.Subnets}},
		{"one family", []store.Block{other, mine6}, nil, holding{have: prefixes("fd00:0:0:3::/64"), missing: prefixes("10.200.0.0/16")}},
		{"both", []store.Block{mine6, mine4, other}, prefixes("10.200.3.0/24"), holding{have: prefixes("10.200.3.0/24", "fd00:0:0:3::/64")}},
		{"two of one", []store.Block{block("10.200.1.0/24", "me"), mine4, mine6}, prefixes("10.200.3.0/24"), holding{
			have: prefixes("10.200.3.0/24", "fd00:0:0:3::/64"), extra: []store.Block{block("10.200.1.0/24", "me")},
		}},
		{"of other subnets", []store.Block{mine4, mine6, block("10.7.0.0/24", "me"), block("10.200.8.0/25", "me")}, nil, holding{
			have: prefixes("10.200.3.0/24", "fd00:0:0:3::/64"), extra: []store.Block{block("10.7.0.0/24", "me"), block("10.200.8.0/25", "me")},
		}},
		{"lost", []store.Block{block("10.200.3.0/24", "you"), mine6}, prefixes("10.200.3.0/24", "fd00:0:0:3::/64"), holding{
			have: prefixes("fd00:0:0:3::/64"), missing: prefixes("10.200.0.0/16"), lost: []store.Block{block("10.200.3.0/24", "you")},
		}},
		{"gone, and no host's", []store.Block{mine6}, prefixes("10.200.3.0/24", "fd00:0:0:3::/64"), holding{
			have: prefixes("fd00:0:0:3::/64"), missing: prefixes("10.200.0.0/16"),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := holdingOf(n, "me", c.blocks, c.remembered)
			if d := cmp.Diff(c.want, got, cmp.AllowUnexported(holding{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	good := func() store.Network {
		return store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/16", "fd00::/48"), BlockBits4: 24, BlockBits6: 64, Transport: store.Auto}
	}
	if n := good(); Check(&n) != nil {
		t.Error(Check(&n))
	}
	for name, spoil := range map[string]func(*store.Network){
		"name":             func(n *store.Network) { n.Name = "../x" },
		"no subnet":        func(n *store.Network) { n.Subnets = nil },
		"host bits":        func(n *store.Network) { n.Subnets[0] = prefix("10.200.0.1/16") },
		"two of a family":  func(n *store.Network) { n.Subnets[1] = prefix("10.201.0.0/16") },
		"block too large":  func(n *store.Network) { n.BlockBits4 = 16 },
		"block too small":  func(n *store.Network) { n.BlockBits4 = 31 },
		"no block":         func(n *store.Network) { n.BlockBits6 = 0 },
		"too many blocks":  func(n *store.Network) { n.BlockBits6 = 100 },
		"transport":        func(n *store.Network) { n.Transport = "pigeon" },
		"mtu":              func(n *store.Network) { n.MTU = 1000 },
		"plugin":           func(n *store.Network) { n.Plugins = append(n.Plugins, []byte(`{"type":"../x"}`)) },
		"not a plugin":     func(n *store.Network) { n.Plugins = append(n.Plugins, []byte(`7`)) },
		"zero subnet":      func(n *store.Network) { n.Subnets[0] = netip.Prefix{} },
		"default route":    func(n *store.Network) { n.Subnets[0], n.BlockBits4 = prefix("0.0.0.0/0"), 24 },
		"metadata":         func(n *store.Network) { n.Subnets[0] = prefix("169.254.0.0/16") },
		"loopback":         func(n *store.Network) { n.Subnets[0] = prefix("127.0.0.0/8") },
		"multicast subnet": func(n *store.Network) { n.Subnets[0] = prefix("224.0.0.0/8") },
	} {
		if n := good(); true {
			if spoil(&n); Check(&n) == nil {
				t.Errorf("%s: taken", name)
			}
		}
	}
}
