// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// model is the expected content of an index.
type model map[netip.Addr]key

func (m model) find(k key) (out []netip.Addr) {
	for a, o := range m {
		if o == k {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (m model) free(first, last netip.Addr) (netip.Addr, bool) {
	for a := first; ; a = a.Next() {
		if _, taken := m[a]; !taken {
			return a, true
		}
		if a == last {
			return a, false
		}
	}
}

// clash returns keys of which many have the same home slots, at the end of the table. So probing
// wraps around to the beginning.
func clash(n int) key {
	k := keyOf(fmt.Sprint(n))
	copy(k[:8], []byte{byte(0xfc | n&3), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	return k
}

func TestIndexModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, keys := range []func(int) key{clash, func(n int) key { return keyOf(fmt.Sprint(n)) }} {
		x, m := buildIndex(nil), model{}
		for step := range draw.Number(t, "PATCHBAY_INDEX_STEPS", 5000, 20000) {
			n := rng.IntN(40)
			a := netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(4) * 3), byte(rng.IntN(64) * 4)})
			if rng.IntN(8) == 0 {
				a = netip.AddrFrom16([16]byte{0xfd, 14: byte(rng.IntN(20)), 15: byte(rng.IntN(20))})
			}
			if owner, taken := m[a]; taken {
				if err := x.remove(owner, a); err != nil {
					t.Fatal(err)
				}
				delete(m, a)
			} else {
				x = mustInsert(t, x, entry{key: keys(n), addr: a})
				m[a] = keys(n)
			}
			if step%50 == 0 {
				compare(t, x, m, keys)
			}
		}
	}
}

func mustInsert(t *testing.T, x *index, e entry) *index {
	t.Helper()
	err := x.insert(e)
	if errors.Is(err, errNoRoom) {
		all, aerr := x.all(nil)
		if aerr != nil {
			t.Fatal(aerr)
		}
		x = buildIndex(all)
		err = x.insert(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func compare(t *testing.T, x *index, m model, keys func(int) key) {
	t.Helper()
	if int(x.head.entries) != len(m) {
		t.Fatalf("%d entries, want %d", x.head.entries, len(m))
	}
	for n := range 40 {
		found, err := x.find(keys(n))
		if err != nil {
			t.Fatal(err)
		}
		var got []netip.Addr
		for _, e := range found {
			got = append(got, e.addr)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if want := m.find(keys(n)); !slices.Equal(got, want) {
			t.Fatalf("owner %d has %v, want %v", n, got, want)
		}
	}
	first, last := netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.12.0")
	for range 20 {
		got, ok, err := x.free(first, last)
		want, wok := m.free(first, last)
		if err != nil || got != want && ok || ok != wok {
			t.Fatalf("first free from %s: %s %v, want %s %v", first, got, ok, want, wok)
		}
		first = got.Next()
	}
}

func TestIndexFree(t *testing.T) {
	var entries []entry
	first := netip.MustParseAddr("10.0.255.250")
	a := first
	for range 5000 {
		entries = append(entries, entry{key: keyOf(a.String()), addr: a})
		a = a.Next()
	}
	x := buildIndex(entries)
	if got, ok, err := x.free(first, netip.MustParseAddr("10.255.255.255")); !ok || got != a || err != nil {
		t.Errorf("%v %v %v, want %v", got, ok, err, a)
	}
	if got, ok, err := x.free(first, a.Prev()); ok || err != nil {
		t.Errorf("%v is free, %v", got, err)
	}
	if got, ok, _ := x.free(netip.MustParseAddr("ff00::"), netip.MustParseAddr("ff00::1")); !ok || got.String() != "ff00::" {
		t.Error(got, ok)
	}
	if _, _, err := x.free(a, first); err == nil {
		t.Error("a range that ends before it starts was searched")
	}
	top := netip.MustParseAddr("255.255.255.255")
	x = buildIndex([]entry{{addr: top}})
	if _, ok, err := x.free(top, top); ok || err != nil {
		t.Error(ok, err)
	}
}

func TestHeaderDamage(t *testing.T) {
	x := buildIndex([]entry{{key: keyOf("a"), addr: netip.MustParseAddr("10.0.0.1")}})
	if err := x.writeHeader(); err != nil {
		t.Fatal(err)
	}
	good := x.pages.(memory)
	if _, err := readIndex(good, int64(len(good))); err != nil {
		t.Fatal(err)
	}
	for i := range headerSize {
		bad := slices.Clone(good)
		bad[i] ^= 0x10
		if _, err := readIndex(bad, int64(len(bad))); (err == nil) != (i >= len(indexMagic)+8*13) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for _, n := range []int{0, 1, headerSize, len(good) - 1} {
		if _, err := readIndex(good[:n], int64(n)); err == nil {
			t.Errorf("%d bytes are an index", n)
		}
	}
}

// A damaged table must not make the index crash, hang or grow without limit.
func FuzzIndexTables(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint16(200))
	f.Fuzz(func(t *testing.T, junk []byte, at uint16) {
		x := buildIndex([]entry{{key: keyOf("a"), addr: netip.MustParseAddr("10.0.0.1")}})
		m := x.pages.(memory)
		copy(m[min(headerSize+int(at), len(m)):], junk)
		a := netip.MustParseAddr("10.0.0.1")
		_, _ = x.find(keyOf("a"))
		_, _, _ = x.free(a, netip.MustParseAddr("10.0.3.255"))
		_ = x.insert(entry{key: keyOf("b"), addr: a})
		_ = x.remove(keyOf("a"), a)
		_, _ = x.all(nil)
	})
}
