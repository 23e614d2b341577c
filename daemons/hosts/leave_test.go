// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
)

// leaving returns a host that was in lan, with its agent stopped. cleared counts the calls
// of the fabric.
func leaving(t *testing.T, g *gate) (h *host, l Leaving, block netip.Prefix, cleared *int) {
	t.Helper()
	must(t, Admin{g}.Create(t.Context(), lan()))
	h = newHost(t, g, 1)
	h.start()
	block = h.block("lan")
	until(t, "saved", func() bool {
		text, _ := os.ReadFile(filepath.Join(h.dir, "state/hosts/world.json"))
		return strings.Contains(string(text), `"own":{"lan":["`+block.String()) && strings.Contains(string(text), `"bridges":["lan"]`)
	})
	h.stop()
	cleared = new(int)
	clear := func(context.Context) error { *cleared++; return nil }
	return h, Leaving{Store: g, Paths: h.agent.opts.Paths, ConfDir: h.dir + "/net.d", Clear: clear, Log: h.log.add}, block, cleared
}

// inStore counts the blocks, hosts and endpoints of a store.
func inStore(t *testing.T, g *gate) (n int) {
	t.Helper()
	w, err := Admin{g.Store}.read(t.Context())
	must(t, err)
	return len(w.Blocks) + len(w.Nodes) + len(w.Endpoints)
}

// Leaving removes all records and files of a host, and nothing that is in use.
func TestLeave(t *testing.T) {
	g := &gate{Store: openStore(t)}
	h, l, block, cleared := leaving(t, g)
	before := inStore(t, g)
	_, err := wirekey.Open(t.Context(), KeyDir(l.Paths))
	must(t, err)
	must(t, os.WriteFile(h.dir+"/net.d/podnet.conflist", []byte(`{"name":"podnet"}`), 0o644))
	h.bridge("lan", netip.PrefixFrom(block.Addr().Next(), 24))
	web := block.Addr().Next().Next().String()
	h.attach("e1", "lan", web, "web")
	refused := func(why string) {
		t.Helper()
		if err := l.Do(t.Context()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, not %q", err, why)
		}
		if h.conf("lan") == "" || inStore(t, g) != before || *cleared > 0 {
			t.Errorf("it refused, and took something away: %d of %d", inStore(t, g), before)
		}
	}
	refused("1 addresses of " + block.String() + " are in use here")
	h.detach("e1", "lan", web)
	st, err := state.Open(h.dir+"/state", "docker")
	must(t, err)
	must(t, st.Networks.Save(&state.Network{ID: "net-lan", Config: []byte(`{"name":"lan","plugins":[{"type":"patchbay","plugins":[{"ipam":{"ranges":[[{"subnet":"` + block.String() + `"}]]}}]}]}`)}))
	refused("Docker network net-lan gives out addresses of lan")
	must(t, st.Networks.Drop("net-lan"))
	h.unreadable("lan")
	refused("count addresses in use")
	must(t, os.Remove(h.dir+"/cni/networks/lan"))
	for range 2 { // a second call does no harm
		must(t, l.Do(t.Context()))
	}
	if h.conf("lan") != "" || h.conf("podnet") == "" || inStore(t, g) != 0 || *cleared == 0 {
		t.Errorf("configuration %q, %d in the store, cleared %d times", h.conf("lan"), inStore(t, g), *cleared)
	}
	if _, err := netlink.LinkByName("pb-lan"); err == nil {
		t.Error("the bridge exists")
	}
	if left, err := os.ReadDir(h.dir + "/state/hosts"); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// The store is away. Leaving still cleans the host, and reports the remaining work.
func TestLeaveStoreAway(t *testing.T) {
	g := &gate{Store: openStore(t)}
	h, l, _, cleared := leaving(t, g)
	g.set(true)
	if err := l.Do(t.Context()); !errors.Is(err, errAway) {
		t.Error(err)
	}
	if h.conf("lan") != "" || *cleared != 1 || inStore(t, g) == 0 {
		t.Errorf("configuration %q, cleared %d times", h.conf("lan"), *cleared)
	}
	g.set(false)
	must(t, l.Do(t.Context()))
	if n := inStore(t, g); n != 0 {
		t.Errorf("%d in the store", n)
	}
}

// Leaving also finds objects that the host has forgotten. With Force it also removes objects that
// are in use.
func TestLeaveForced(t *testing.T) {
	g := &gate{Store: openStore(t)}
	h, l, block, cleared := leaving(t, g)
	h.attach("e1", "lan", block.Addr().Next().Next().String(), "web")
	must(t, os.WriteFile(h.dir+"/state/hosts/world.json", []byte(`{"networks":[`), 0o600))
	if err := l.Do(t.Context()); err == nil {
		t.Error("it left without knowing its blocks")
	}
	must(t, os.Remove(h.dir+"/state/hosts/world.json"))
	if err := l.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "are in use here") || *cleared > 0 || h.conf("lan") == "" {
		t.Errorf("%v, cleared %d times", err, *cleared)
	}
	l.Force = true
	must(t, l.Do(t.Context()))
	if blocks, _, err := list(t.Context(), g.Blocks(), ""); err != nil || len(blocks) > 0 || !slices.ContainsFunc(h.log.all, func(s string) bool { return strings.Contains(s, "gave back block "+block.String()) }) {
		t.Errorf("%v %v", blocks, err)
	}
}
