// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// unreadable makes host-local's files of a network unreadable, as EIO or EMFILE would. That is
// not the same as having no files.
func (h *host) unreadable(network string) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "cni/networks", network)
	must(h.t, os.RemoveAll(dir))
	must(h.t, os.MkdirAll(filepath.Dir(dir), 0o755))
	must(h.t, os.WriteFile(dir, nil, 0o644))
}

// A host cannot read which addresses its containers have. It acts as if they had all of them.
func TestUsedUnknown(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	block := h.block("lan")
	h.stop()
	h.unreadable("lan")
	a, n := h.agent, lan()
	other := store.Block{Network: "lan", Prefix: prefix("10.200.250.0/24"), Node: a.ID()}
	for _, c := range []struct {
		name string
		do   func(w *world) error
	}{
		{"another host's block", func(w *world) error {
			return a.yield(w, &n, []store.Block{{Network: "lan", Prefix: block, Node: "other"}})
		}},
		{"one block too many", func(*world) error {
			_, err := s.Blocks().Create(t.Context(), other, nil)
			must(t, err)
			return a.giveBack(t.Context(), &n, []store.Block{other})
		}},
		{"a removed network", func(w *world) error {
			return a.leave(t.Context(), &world{Own: w.Own})
		}},
		{"an address of a bridge", func(*world) error {
			bridge(t, "pb-lan", netip.PrefixFrom(other.Prefix.Addr().Next(), 24))
			b, err := openBridges(a.links, a.opts.Paths, &world{Given: map[string][]netip.Prefix{"lan": {other.Prefix}}}, t.Logf)
			must(t, err)
			defer b.close()
			return a.tidyAddrs(b, &part{plan: plan{Network: n, Blocks: []netip.Prefix{block}}})
		}},
	} {
		w, _, _ := a.mirror.snapshot()
		if err := c.do(&w); err == nil || !strings.Contains(err.Error(), "count addresses in use") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if w, _, _ := a.mirror.snapshot(); !slices.Equal(w.Own["lan"], []netip.Prefix{block}) {
		t.Errorf("it remembers %v", w.Own)
	}
	if _, err := s.Blocks().Get(t.Context(), other.Key()); err != nil {
		t.Error(err)
	}
	if len(addresses(t, "pb-lan")) != 1 {
		t.Error("the bridge has lost its address")
	}
}
