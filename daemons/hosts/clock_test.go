// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// full makes a network of two blocks. Two hosts that are not present hold them. The first host
// has a lasting endpoint.
func full(t *testing.T, seen time.Time) (store.Store, *world, store.Network) {
	t.Helper()
	s := openStore(t)
	n := store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/29"), BlockBits4: 30, Transport: store.Auto}
	must(t, Admin{s}.Create(t.Context(), n))
	for i, id := range []string{"first", "second"} {
		_, err := s.Nodes().Create(t.Context(), store.Node{ID: id, Name: id, Seen: seen, LastingIn: historyOf(t, s)}, nil)
		must(t, err)
		_, err = s.Blocks().Create(t.Context(), store.Block{Network: "lan", Prefix: nth(n.Subnets[0], 30, uint64(i)), Node: id}, nil)
		must(t, err)
	}
	_, err := s.Entries().Create(t.Context(), store.Entry{Network: lasting, Node: "first", ID: "host.x"}, nil)
	must(t, err)
	return s, &world{Networks: []store.Network{n}}, n
}

// historyOf returns the name of a store's history.
func historyOf(t *testing.T, s store.Store) string {
	t.Helper()
	_, at, err := s.Nodes().List(t.Context(), "")
	must(t, err)
	_, name, err := at.Split()
	must(t, err)
	return name
}

// A store that lost its data has a new history. A living host may have written its record there before its endpoint.
func TestReclaimNotInANewHistory(t *testing.T) {
	s, w, n := full(t, time.Now())
	second, err := s.Nodes().Get(t.Context(), "second")
	must(t, err)
	second.Object.LastingIn = "before"
	_, err = s.Nodes().Update(t.Context(), second.Object, second.Revision)
	must(t, err)
	a := &Agent{self: "me", wall: time.Now}
	a.opts.Store, a.opts.Reclaim, a.opts.Log = s, 24*time.Hour, t.Logf
	if err := a.claim(t.Context(), w, &n); err == nil {
		t.Errorf("took %v of a host whose endpoint the store has lost", a.mirror.cache.Own["lan"])
	}
}

// Only the store decides that a host is gone. Neither the host's own clock nor that of the host
// that would take its block decides this.
func TestReclaimAsksNoClock(t *testing.T) {
	for about, ahead := range map[string]time.Duration{"right": 0, "a year ahead": 365 * 24 * time.Hour, "of 1970": time.Until(time.Unix(0, 0))} {
		for _, seen := range []time.Time{time.Now(), time.Unix(0, 0), time.Now().Add(365 * 24 * time.Hour)} {
			s, w, n := full(t, seen)
			a := &Agent{self: "me", wall: func() time.Time { return time.Now().Add(ahead) }}
			a.opts.Store, a.opts.Reclaim, a.opts.Log = s, 24*time.Hour, t.Logf
			must(t, a.claim(t.Context(), w, &n))
			if got := a.mirror.cache.Own["lan"]; !slices.Equal(got, prefixes("10.200.0.4/30")) {
				t.Errorf("clock %s, seen %v: took %v, want the block of the host without a session", about, seen, got)
			}
		}
	}
}

// A host's clock was set back. The host still updates its record.
func TestSeenAfterClockSetBack(t *testing.T) {
	s := openStore(t)
	now := time.Now().Round(0)
	a := &Agent{}
	a.opts.Store, a.opts.Reclaim = s, 24*time.Hour
	for _, at := range []time.Time{now.Add(365 * 24 * time.Hour), now} {
		must(t, a.putNode(t.Context(), store.Node{ID: "me", Seen: at.UTC()}, false))
	}
	if got, err := s.Nodes().Get(t.Context(), "me"); err != nil || !got.Object.Seen.Equal(now) {
		t.Errorf("seen %v, %v, want %v", got.Object.Seen, err, now)
	}
}

// A doubt that was saved counts from the agent's start, whatever its date.
func TestDoubtOnDisk(t *testing.T) {
	for about, at := range map[string]time.Time{"1970": time.Unix(1, 0), "a year ahead": time.Now().Add(365 * 24 * time.Hour)} {
		dir := t.TempDir()
		data, err := json.Marshal(world{Doubted: at})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, cacheFile), data, 0o600))
		m := &mirror{doubt: time.Hour}
		must(t, m.load(dir))
		if since := time.Since(m.cache.Doubted); since < 0 || since > time.Minute {
			t.Errorf("doubted in %s: %v ago", about, since)
		}
		m.merge()
		if m.cache.Doubted.IsZero() {
			t.Errorf("doubted in %s: believed at once", about)
		}
		m.doubt = 0
		if m.merge(); !m.cache.Doubted.IsZero() {
			t.Errorf("doubted in %s: for ever", about)
		}
	}
}

// Another host holds this host's block now. This host routes the block there, even if there is no
// other free block.
func TestLostBlockIsReached(t *testing.T) {
	s, w, n := full(t, time.Now())
	a := &Agent{self: "me", wall: time.Now}
	a.opts.Store, a.opts.Reclaim, a.opts.Log, a.opts.Paths.CNI = s, 24*time.Hour, t.Logf, t.TempDir()
	_, err := s.Entries().Create(t.Context(), store.Entry{Network: lasting, Node: "second", ID: "host.x"}, nil)
	must(t, err)
	a.mirror.remember("lan", prefixes("10.200.0.0/30"))
	w.Own = map[string][]netip.Prefix{"lan": prefixes("10.200.0.0/30")}
	if err := a.claim(t.Context(), w, &n); err == nil {
		t.Error("there is no block")
	}
	if own := a.mirror.cache.Own["lan"]; len(own) != 0 {
		t.Errorf("it still takes %v for its own", own)
	}
}

// Another host first creates this host's former block. The block's addresses may be in use here,
// so this host claims no other block.
func TestFormerBlockLostInRace(t *testing.T) {
	s, w, n := full(t, time.Now())
	a := &Agent{self: "me", wall: time.Now}
	a.opts.Store, a.opts.Reclaim, a.opts.Log = s, 24*time.Hour, t.Logf
	must(t, s.Blocks().Delete(t.Context(), "lan/10.200.0.4-30", ""))
	w.Own = map[string][]netip.Prefix{"lan": prefixes("10.200.0.0/30")}
	if b, err := a.claimOne(t.Context(), w, &n, n.Subnets[0], nil); err == nil {
		t.Errorf("it took %s", b.Prefix)
	}
}

// Two present hosts each believe that a missing block belongs to the other host, and there is no
// other free block. They do not wait for ever.
func TestBlockOfHostThatWaits(t *testing.T) {
	n := store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/29"), BlockBits4: 30, Transport: store.Auto}
	one := store.Block{Network: "lan", Prefix: prefix("10.200.0.0/30"), Node: "other"}
	two := store.Block{Network: "lan", Prefix: prefix("10.200.0.4/30"), Node: "third"}
	ago := time.Now().Add(-rebuildTime)
	still := func(change func(m *mirror)) int { // how many blocks are missing
		m := &mirror{self: "me", doubt: time.Hour, updated: time.Now()}
		m.cache = world{
			Networks: []store.Network{n}, Blocks: []store.Block{one, two}, Endpoints: []store.Entry{{Network: presence, Node: "other"}},
			Missing: missing{Blocks: []store.Block{one}}, Doubted: ago,
		}
		m.restore()
		m.back = map[string]time.Time{"host other": ago, "network lan": ago}
		change(m)
		m.settle()
		return len(m.missing().Blocks)
	}
	if n := still(func(*mirror) {}); n != 0 {
		t.Errorf("missing: %d", n)
	}
	for about, change := range map[string]func(m *mirror){
		"the host had no time":       func(m *mirror) { m.back["host other"] = m.updated.Add(-time.Minute) },
		"the network is new":         func(m *mirror) { m.back["network lan"] = m.updated.Add(-time.Minute) },
		"a moment ago":               func(m *mirror) { m.cache.Doubted = time.Now() },
		"not present":                func(m *mirror) { m.endpoints.Replace(nil, true) },
		"one is free":                func(m *mirror) { m.blocks.Replace(nil, true) },
		"no event since it was lost": func(m *mirror) { m.updated = ago.Add(time.Second) },
	} {
		if n := still(change); n != 1 {
			t.Errorf("%s: missing: %d", about, n)
		}
	}
}

// A store was emptied a moment ago, and no event has arrived. It gives a host no block that the
// host knows as another host's.
func TestClaimOfEmptiedStore(t *testing.T) {
	s, w, n := full(t, time.Now())
	a := &Agent{self: "me", wall: time.Now}
	a.opts.Store, a.opts.Reclaim, a.opts.Log = s, 24*time.Hour, t.Logf
	w.Blocks = []store.Block{{Network: "lan", Prefix: prefix("10.200.0.4/30"), Node: "second"}}
	must(t, s.Blocks().Delete(t.Context(), "lan/10.200.0.4-30", ""))
	if err := a.claim(t.Context(), w, &n); err == nil {
		t.Errorf("it took %v", a.mirror.cache.Own)
	}
	w.Blocks = nil // the watch has delivered the removal
	must(t, a.claim(t.Context(), w, &n))
}
