// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

func TestWithoutExceptUnique(t *testing.T) {
	a, b := nft.Element{Set: "s", Key: nft.Hex{1}}, nft.Element{Set: "s", Key: nft.Hex{2}}
	other, until := nft.Element{Set: "t", Key: nft.Hex{1}}, nft.Element{Set: "s", Key: nft.Hex{1}, KeyEnd: nft.Hex{9}}
	comment := nft.Element{Set: "s", Key: nft.Hex{1}, Comment: "of another"}
	if got := without([]nft.Element{a, b, other, until}, []nft.Element{comment}); !cmp.Equal(places(got), places([]nft.Element{b, other, until})) {
		t.Errorf("without: %v", got)
	}
	if got := except([]int{1, 2, 3, 2}, []int{2}); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("except: %v", got)
	}
	if got := unique([]owner.Key{"a", "b", "a", "c", "b"}); !slices.Equal(got, []owner.Key{"a", "c", "b"}) {
		t.Errorf("unique: %v", got)
	}
}

func places(elems []nft.Element) (list []string) {
	for _, e := range elems {
		list = append(list, e.Set+" "+string(e.Key)+" "+string(e.KeyEnd))
	}
	return list
}

// A record of a repeated ADD keeps what only a DEL may remove, each value once.
func TestInherit(t *testing.T) {
	one, two, three := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("10.0.0.3/32")
	elems := []nft.Element{{Set: "s"}}
	for about, c := range map[string]struct{ before, now, want record.Record }{
		"facts, links and displaced": {
			record.Record{Shared: []string{"f", "g"}, Links: []string{"v1"}, Displaced: []owner.Key{"x"}, Noted: true},
			record.Record{Shared: []string{"g", "h"}, Links: []string{"v2"}, Displaced: []owner.Key{"y"}, Noted: true},
			record.Record{Shared: []string{"g", "h", "f"}, Links: []string{"v2", "v1"}, Displaced: []owner.Key{"y", "x"}, Noted: true},
		},
		"elements of which nobody noted whose they were": {record.Record{Elements: elems}, record.Record{Noted: true}, record.Record{}},
		"no elements, so nothing to note":                {record.Record{}, record.Record{Noted: true}, record.Record{Noted: true}},
		"accepted addresses, and none now": {
			record.Record{Accepts: []netip.Prefix{one}, AdminChain: "ADMIN", Open: true}, record.Record{},
			record.Record{Accepts: []netip.Prefix{one}, AdminChain: "ADMIN", Open: true},
		},
		"accepted addresses before another chain": {
			record.Record{Accepts: []netip.Prefix{one, two}, AdminChain: "ADMIN", Open: true}, record.Record{Accepts: []netip.Prefix{two}, AdminChain: "NEW"},
			record.Record{Accepts: []netip.Prefix{two, one}, AdminChain: "NEW"},
		},
		"sources, and none now": {
			record.Record{Zone: "home", Sources: []netip.Prefix{one}}, record.Record{Zone: "trusted"}, record.Record{Zone: "home", Sources: []netip.Prefix{one}},
		},
		"sources of the same zone": {
			record.Record{Zone: "home", Sources: []netip.Prefix{one, two}}, record.Record{Zone: "home", Sources: []netip.Prefix{two}},
			record.Record{Zone: "home", Sources: []netip.Prefix{two, one}},
		},
		"sources of three zones": {
			record.Record{Zone: "home", Sources: []netip.Prefix{one, two}, OtherZones: []record.ZoneSources{{Zone: "dmz", Sources: []netip.Prefix{two, three}}}},
			record.Record{Zone: "trusted", Sources: []netip.Prefix{two}},
			record.Record{Zone: "trusted", Sources: []netip.Prefix{two}, OtherZones: []record.ZoneSources{{Zone: "home", Sources: []netip.Prefix{one}}, {Zone: "dmz", Sources: []netip.Prefix{three}}}},
		},
		"addresses that an ADD may have closed": {
			record.Record{Policed: &record.Policed{Addrs: []netip.Addr{one.Addr(), two.Addr()}, Former: []netip.Addr{three.Addr()}}},
			record.Record{Policed: &record.Policed{Addrs: []netip.Addr{two.Addr()}}},
			record.Record{Policed: &record.Policed{Addrs: []netip.Addr{two.Addr()}, Former: []netip.Addr{one.Addr(), three.Addr()}}},
		},
	} {
		now := c.now
		inherit(&now, &c.before)
		if diff := cmp.Diff(c.want, now, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s:\n%s", about, diff)
		}
	}
}

// masq is an element of a container, as an ADD makes it.
func (c *caller) masq(id, addr string) nft.Element {
	return nft.MasqAll(netip.MustParseAddr(addr), nft.Comment(string(c.owner(id)), c.network, id, "eth0"))
}

// add is an ADD that makes the element of each address.
func (c *caller) add(id string, addrs ...string) error {
	c.t.Helper()
	return c.do(spec.Add, "portmap", id, "", func(ctx context.Context, r *plugin.Request) error {
		rec, s := &record.Record{}, netstate.State{}
		for _, a := range addrs {
			e := c.masq(id, a)
			rec.Elements, s = append(rec.Elements, e), append(s, netstate.Element{Element: e})
		}
		k := Of(r)
		if err := k.Record(r, rec); err != nil {
			return err
		}
		env, err := k.HostEnv(r)
		if err != nil {
			return err
		}
		return k.Apply(ctx, r, env, s)
	})
}

// del is a DEL that removes what the record names.
func (c *caller) del(id string) error {
	c.t.Helper()
	return c.do(spec.Del, "portmap", id, "", func(ctx context.Context, r *plugin.Request) error {
		k := Of(r)
		return k.Detach(r, nil, func(rec *record.Record) error {
			if rec != nil {
				k.Withdraw(rec)
			}
			return k.NFT.Commit(ctx)
		})
	})
}

// has returns the id of the container whose element for an address is in the kernel, or "".
func (c *caller) has(addr string) string {
	c.t.Helper()
	fw := nft.Open(paths.Default().Run)
	defer fw.Close() //nolint:errcheck // read only
	want := c.masq("", addr)
	e, ok, err := fw.Get(want.Set, want.Key)
	c.must(err)
	if !ok {
		return ""
	}
	key, _ := nft.OwnerOf(e.Comment)
	return (&traces.Node{Paths: paths.Default()}).Names(c.network, owner.Key(key), []nft.Element{e}).ContainerID
}

func (c *caller) elements(id string) (n int) {
	c.t.Helper()
	rec, err := record.New(paths.Default().Run).Read(c.network, c.owner(id), "portmap")
	c.must(err)
	if rec == nil {
		return 0
	}
	return len(rec.Elements)
}

// A repeated ADD removes the elements of the earlier one only if its namespace has died. Until a DEL, the record
// names all that exists.
func TestRepeatedADD(t *testing.T) {
	c := newCaller(t)
	c.must(c.add("c1", "10.9.1.1", "10.9.1.2"))
	c.must(c.add("c1", "10.9.1.2", "10.9.1.3"))
	if c.has("10.9.1.1") != "c1" || c.has("10.9.1.3") != "c1" || c.elements("c1") != 3 {
		t.Errorf("in the same namespace: %q %q, %d in the record", c.has("10.9.1.1"), c.has("10.9.1.3"), c.elements("c1"))
	}
	c.must(netns.Delete(c.netNS))
	c.netNS = nettest.NewNS(t, "repeatedagain")
	c.must(c.add("c1", "10.9.1.3", "10.9.1.4"))
	if c.has("10.9.1.1") != "" || c.has("10.9.1.2") != "" || c.has("10.9.1.3") != "c1" || c.has("10.9.1.4") != "c1" || c.elements("c1") != 2 {
		t.Errorf("in a new namespace: %q %q %q, %d in the record", c.has("10.9.1.1"), c.has("10.9.1.2"), c.has("10.9.1.4"), c.elements("c1"))
	}
	c.must(c.del("c1"))
	if c.has("10.9.1.3") != "" || c.has("10.9.1.4") != "" || len(c.files()) > 0 {
		t.Errorf("after DEL: %q %q %v", c.has("10.9.1.3"), c.has("10.9.1.4"), c.files())
	}
}

// The last of several attachments with one address has the element. When it goes, the last one before it that
// lives gets the element back.
func TestHeirs(t *testing.T) {
	c := newCaller(t)
	living, dead := c.netNS, nettest.NewNS(t, "heirdead")
	const addr = "10.9.2.1"
	for _, add := range []struct{ id, netNS string }{{"c1", living}, {"c2", living}, {"c3", dead}, {"c4", living}} {
		c.netNS = add.netNS
		c.must(c.add(add.id, addr))
		if got := c.has(addr); got != add.id {
			t.Fatalf("after the ADD of %s: %q", add.id, got)
		}
	}
	c.must(netns.Delete(dead))
	c.netNS = living
	for _, del := range []struct{ id, then string }{{"c4", "c2"}, {"c3", "c2"}, {"c1", "c2"}, {"c2", ""}} {
		c.must(c.del(del.id))
		if got := c.has(addr); got != del.then {
			t.Errorf("after the DEL of %s %q has the element, want %q", del.id, got, del.then)
		}
	}
}

// A DEL that removes the record of a running ADD wins: the ADD fails, may be repeated, and leaves nothing.
func TestADDAfterItsDEL(t *testing.T) {
	c := newCaller(t)
	err := c.do(spec.Add, "portmap", "c1", "", func(_ context.Context, r *plugin.Request) error {
		k, rec := Of(r), &record.Record{Elements: []nft.Element{c.masq("c1", "10.9.3.1")}}
		if err := k.Record(r, rec); err != nil {
			return err
		}
		k.NFT.Add(rec.Elements...)
		return k.Records.Remove(r.Network, r.Owner, "portmap") // as the DEL does
	})
	if spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("error %v", err)
	}
	if c.has("10.9.3.1") != "" || len(c.files()) > 0 {
		t.Errorf("left: %q %v", c.has("10.9.3.1"), c.files())
	}
}
