// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// The agents of the tests sync many files, in a file system in memory.
func TestMain(m *testing.M) {
	if err := os.Setenv("TMPDIR", "/run"); err != nil {
		panic(err)
	}
	nettest.Main(m)
}

// An agent that starts without its store continues with its saved state, and removes
// nothing.
func TestStoreAway(t *testing.T) {
	g := &gate{Store: openStore(t)}
	must(t, Admin{g}.Create(t.Context(), lan()))
	a, b := newHost(t, g, 1), newHost(t, g, 2)
	a.start()
	b.start()
	block, other := a.block("lan"), b.block("lan").String()+" host2"
	until(t, "the route", func() bool { return slices.Equal(a.fabric.routes(), []string{other}) })
	until(t, "it is saved", func() bool {
		text, _ := os.ReadFile(filepath.Join(a.dir, "state/hosts/world.json"))
		return strings.Contains(string(text), b.agent.ID())
	})
	a.stop()
	conf := a.conf("lan")
	g.set(true)
	a.start()
	until(t, "the route, from memory", func() bool { return slices.Equal(a.fabric.routes(), []string{other}) })
	if a.conf("lan") != conf {
		t.Error("the configuration changed")
	}
	a.attach("e1", "lan", block.Addr().Next().Next().String(), "web")
	until(t, "it is logged", func() bool { return a.log.has("follow: the store is away") })
	g.set(false)
	until(t, "the name, afterwards", func() bool { return slices.Equal(endpointNames(t, g), []string{"web"}) })
	if a.conf("lan") != conf {
		t.Error("the configuration changed when the store came back")
	}
}

// An agent's first start is without a store. It knows nothing and does nothing.
func TestNothingKnown(t *testing.T) {
	g := &gate{Store: openStore(t), away: true}
	a := newHost(t, g, 1)
	must(t, writeConf(a.dir+"/net.d", "lan", []byte(`{"generatedBy":"`+mark+`"}`)))
	a.start()
	until(t, "it is logged", func() bool { return a.log.has("the store is away") })
	a.stop()
	if a.fabric.calls != 0 || a.conf("lan") == "" {
		t.Errorf("%d calls, configuration %q", a.fabric.calls, a.conf("lan"))
	}
}

// When a session is lost, its names disappear. The next session brings them back.
func TestSessionLost(t *testing.T) {
	g := &gate{Store: openStore(t)}
	must(t, Admin{g}.Create(t.Context(), lan()))
	a := newHost(t, g, 1)
	a.start()
	a.attach("e1", "lan", a.block("lan").Addr().Next().Next().String(), "web")
	until(t, "the name is published", func() bool { return slices.Equal(endpointNames(t, g), []string{"web"}) })
	must(t, g.session().End(t.Context()))
	until(t, "a new session with the name", func() bool { return a.log.has("was lost") && slices.Equal(endpointNames(t, g), []string{"web"}) })
	until(t, "nothing is left of the sessions", func() bool { return g.ended.Load() == 2 })
	a.detach("e1", "lan", a.block("lan").Addr().Next().Next().String())
	until(t, "gone", func() bool { return len(endpointNames(t, g)) == 0 })
}

// While an agent restarts, its names never disappear.
func TestRestartShowsNoGap(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a := newHost(t, s, 1)
	a.start()
	a.attach("e1", "lan", a.block("lan").Addr().Next().Next().String(), "web")
	until(t, "the name is published", func() bool { return slices.Equal(endpointNames(t, s), []string{"web"}) })
	keys := func() []string {
		all, _, err := list(t.Context(), s.Entries(), "lan/")
		must(t, err)
		var out []string
		for key := range all {
			out = append(out, key)
		}
		return out
	}
	before := keys()
	a.stop()
	a.start()
	until(t, "the next session's, and only that", func() bool {
		now := keys()
		if len(now) == 0 {
			t.Fatal("a gap")
		}
		return len(now) == 1 && now[0] != before[0]
	})
}

// Two hosts with one id are reported. A former agent of this host is not. The report stays until
// no endpoints of the other host have come for duplicateExpiry.
func TestDuplicateID(t *testing.T) {
	a := &Agent{self: "me", run: "own", others: map[string]time.Time{}}
	before := store.Entry{Network: presence, ID: "host.before", Node: "me"}
	next := store.Entry{Network: "lan", ID: "e2.next", Node: "me"}
	own := store.Entry{Network: "lan", ID: "e1.own", Node: "me"}
	began := time.Now()
	for _, c := range []struct {
		after    time.Duration
		others   []store.Entry
		reported bool
	}{
		{0, []store.Entry{before, own}, false},
		{time.Second, []store.Entry{before}, false},
		{duplicateAfter / 2, []store.Entry{before, own}, false},
		{duplicateAfter, []store.Entry{own}, false},
		{duplicateAfter + 1, []store.Entry{before, next, own}, true}, // the endpoint came again
		{duplicateAfter + 2, []store.Entry{next, before}, true},
		{duplicateAfter + 3, nil, true}, // removed until the endpoint comes again
		{duplicateAfter + reconcileEvery, []store.Entry{own}, true},
		{duplicateAfter + duplicateExpiry, []store.Entry{before}, true},
		{duplicateAfter + duplicateExpiry + duplicateExpiry - 1, nil, true},
		{duplicateAfter + duplicateExpiry + duplicateExpiry, nil, false},
	} {
		err := a.duplicateID(c.others, began.Add(c.after))
		if reported := err != nil; reported != c.reported || reported && !strings.Contains(err.Error(), "node.json") {
			t.Errorf("after %v: %v", c.after, err)
		}
	}
}

// One pass reports a duplicate id once. Later the report ends.
func TestDuplicateIDReportedOnce(t *testing.T) {
	now := time.Now()
	a := &Agent{self: "me", run: "own", checked: now, others: map[string]time.Time{"before": now.Add(-time.Hour)}}
	a.opts.Store, a.problems.Log = openStore(t), t.Logf
	a.published = map[string]store.Item[store.Entry]{}
	for key, e := range a.endpoints(&world{}, nil) {
		a.published[key] = store.Item[store.Entry]{Object: e}
	}
	look := func(what string, reported, changes int, ids ...string) {
		t.Helper()
		w := &world{}
		for _, id := range ids {
			w.Endpoints = append(w.Endpoints, store.Entry{Network: presence, ID: id, Node: "me"})
		}
		must(t, a.publish(t.Context(), w))
		if len(a.problems.All()) != reported || a.problems.Changes() != changes {
			t.Errorf("%s: %d changes, now %v", what, a.problems.Changes(), a.problems.All())
		}
	}
	look("two runs", 1, 1, "host.before", "host.next")
	look("all are removed", 1, 1)
	a.duplicateSeen = now.Add(-duplicateExpiry)
	look("for long", 0, 2)
}

// Five hosts share four blocks. The fifth host gets a block only when another host has been gone
// for long.
func TestReclaim(t *testing.T) {
	s := openStore(t)
	small := store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/28"), BlockBits4: 30, Transport: store.Auto}
	must(t, Admin{s}.Create(t.Context(), small))
	long := time.Now().Add(-25 * time.Hour)
	for i, seen := range []time.Time{time.Now(), long, long.Add(-time.Hour), time.Now()} {
		id := "node" + string(rune('a'+i))
		_, err := s.Nodes().Create(t.Context(), store.Node{ID: id, Name: id, Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.10")}, Seen: seen}, nil)
		must(t, err)
		_, err = s.Blocks().Create(t.Context(), store.Block{Network: "lan", Prefix: nth(small.Subnets[0], 30, uint64(i)), Node: id}, nil)
		must(t, err)
	}
	// By its record, c has been gone longest. But c is present.
	_, err := s.Entries().Create(t.Context(), store.Entry{Network: presence, ID: "host", Node: "nodec"}, nil)
	must(t, err)
	a, b := newHost(t, s, 1), newHost(t, s, 2)
	a.start()
	if got := a.block("lan"); got != prefix("10.200.0.4/30") {
		t.Errorf("took %s", got)
	}
	b.start()
	until(t, "an error that names the holders", func() bool {
		return b.log.has("no block of 10.200.0.0/28 is free: nodec has 10.200.0.8/30 (present), node")
	})
	if b.conf("lan") != "" {
		t.Error("a configuration without a block")
	}
	a.stop()
	must(t, s.Entries().Delete(t.Context(), a.presenceKey(), ""))
	if gone, err := (Admin{s}).Forget(t.Context(), "host1"); err != nil || len(gone) != 1 || gone[0].Prefix != prefix("10.200.0.4/30") {
		t.Errorf("forget: %v %v", gone, err)
	}
	if got := b.block("lan"); got != prefix("10.200.0.4/30") {
		t.Errorf("after forget: %s", got)
	}
}

func (h *host) presenceKey() string {
	h.t.Helper()
	all, _, err := list(h.t.Context(), h.store.Entries(), presence+"/"+h.agent.ID()+"/")
	must(h.t, err)
	for key := range all {
		return key
	}
	return ""
}

// Another host holds this host's block now. This host no longer allocates from it, not even for a
// Docker network that has a copy of the configuration. While containers have addresses of it, this
// host takes no other block.
func TestBlockLost(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a := newHost(t, s, 1)
	a.start()
	block := a.block("lan")
	web := block.Addr().Next().Next().String()
	a.attach("e1", "lan", web, "web")
	a.bridge("lan", netip.PrefixFrom(block.Addr().Next(), 24))
	a.copies("dockerlan", "lan")
	until(t, "saved", func() bool {
		text, _ := os.ReadFile(filepath.Join(a.dir, "state/hosts/world.json"))
		return strings.Contains(string(text), `"own":{"lan":["`+block.String())
	})
	a.stop()
	lost := store.Block{Network: "lan", Prefix: block, Node: "other"}
	must(t, s.Blocks().Delete(t.Context(), lost.Key(), ""))
	_, err := s.Blocks().Create(t.Context(), lost, nil)
	must(t, err)
	_, err = s.Nodes().Create(t.Context(), store.Node{ID: "other", Name: "thief", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.99")}}, nil)
	must(t, err)
	a.start()
	until(t, "it is logged", func() bool {
		return a.log.has("block " + block.String() + " of this host belongs to thief now, and 1 addresses of it are in use here")
	})
	until(t, "no configuration", func() bool { return a.conf("lan") == "" })
	a.refuses("lan", block, "block "+block.String()+" of this host belongs to thief now")
	until(t, "ls reports the Docker network", a.reports("Docker network dockerlan: its containers get no addresses: block "+block.String()+" of this host belongs to thief now"))
	if len(a.fabric.routes()) != 0 {
		t.Errorf("a route over our own containers: %v", a.fabric.routes())
	}
	a.detach("e1", "lan", web)
	until(t, "another one", func() bool { return a.conf("lan") != "" && a.block("lan") != block })
	a.refuses("lan", block, "this host's block of network lan is "+a.block("lan").String()+" now")
	must(t, a.give("lan", a.block("lan")))
	until(t, "the route to the block", func() bool { return slices.Equal(a.fabric.routes(), []string{block.String() + " thief"}) })
	until(t, "the bridge without the old address", func() bool { return len(addresses(t, "pb-lan")) == 0 })
	until(t, "no container is on it", func() bool { return Admin{s}.Remove(t.Context(), "lan", false) == nil })
	until(t, "the bridge is gone", func() bool { _, err := netlink.LinkByName("pb-lan"); return err != nil })
}

func bridge(t *testing.T, name string, addr netip.Prefix) {
	t.Helper()
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	must(t, netlink.LinkAdd(link))
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), 32)}}))
}

func addresses(t *testing.T, name string) []netlink.Addr {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	addrs, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	must(t, err)
	return addrs
}

// A store that has lost its data deletes nothing on the hosts. Its networks are created again,
// and the hosts get their old blocks.
func TestStoreLostItsData(t *testing.T) {
	g := &gate{Store: openStore(t)}
	must(t, Admin{g}.Create(t.Context(), lan()))
	a, b := newHost(t, g, 1), newHost(t, g, 2)
	a.start()
	b.start()
	routes := []string{b.block("lan").String() + " host2"}
	until(t, "the route", func() bool { return slices.Equal(a.fabric.routes(), routes) })
	a.block("lan") // the route may come before the block
	conf := a.conf("lan")
	a.stop()
	b.stop()
	blank := openStore(t)
	a.store, b.store = blank, blank
	a.start()
	b.start()
	until(t, "it is logged", func() bool { return a.log.has("as if its data were lost") })
	until(t, "the route, from memory", func() bool { return slices.Equal(a.fabric.routes(), routes) })
	until(t, "the hosts and their blocks are in the store again", func() bool {
		nodes, _, err := list(t.Context(), blank.Nodes(), "")
		blocks, _, err2 := list(t.Context(), blank.Blocks(), "")
		return err == nil && err2 == nil && len(nodes) == 2 && len(blocks) == 2
	})
	if got := a.fabric.routes(); !slices.Equal(got, routes) || a.conf("lan") != conf {
		t.Errorf("%v %s", got, a.conf("lan"))
	}
	must(t, Admin{blank}.Create(t.Context(), lan()))
	until(t, "the old blocks", func() bool {
		blocks, _, err := list(t.Context(), blank.Blocks(), "")
		return err == nil && len(blocks) == 2 && slices.Equal(a.fabric.routes(), routes)
	})
	if a.conf("lan") != conf || a.log.has("configuration removed") || b.log.has("configuration removed") {
		t.Error(a.conf("lan"))
	}
}

// Another program wrote a configuration. The agent does not change it, and reports it.
func TestForeignConfiguration(t *testing.T) {
	s := openStore(t)
	a := newHost(t, s, 1)
	must(t, os.MkdirAll(a.dir+"/net.d", 0o755))
	must(t, os.WriteFile(a.dir+"/net.d/lan.conflist", []byte(`{"name":"lan"}`), 0o644))
	a.start()
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "it is logged", func() bool { return a.log.has("the agent did not write it") })
	until(t, "ls reports it", func() bool {
		l, err := Admin{s}.List(t.Context(), a.dir+"/state/hosts")
		must(t, err)
		return len(l.Wrong) == 1 && strings.Contains(l.Wrong[0], "the agent did not write it")
	})
	if a.conf("lan") != `{"name":"lan"}` {
		t.Error(a.conf("lan"))
	}
}

// The store is away. On a host with an agent's saved state, ls works.
func TestListRemembered(t *testing.T) {
	g := &gate{Store: openStore(t)}
	must(t, Admin{g}.Create(t.Context(), lan()))
	a := newHost(t, g, 1)
	a.start()
	block := a.block("lan")
	until(t, "saved", func() bool {
		text, _ := os.ReadFile(filepath.Join(a.dir, "state/hosts/world.json"))
		return strings.Contains(string(text), block.String())
	})
	a.stop()
	g.set(true)
	l, err := Admin{g}.List(t.Context(), a.dir+"/state/hosts")
	must(t, err)
	var out strings.Builder
	must(t, l.Print(&out))
	for _, want := range []string{"the store is away, this is its last known state", block.String() + "  lan      host1", "present"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if _, err := (Admin{g}).List(t.Context(), t.TempDir()); !errors.Is(err, errAway) {
		t.Error(err)
	}
}
