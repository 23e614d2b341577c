// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// twoHosts returns hosts that have a block of network lan, and their store.
func twoHosts(t *testing.T) (shared *chaos.Shared, s store.Store, a, b *host) {
	t.Helper()
	shared = chaos.NewShared()
	s = shared.Open()
	t.Cleanup(func() { must(t, s.Close()) })
	must(t, Admin{s}.Create(t.Context(), lan()))
	a, b = newHost(t, s, 1), newHost(t, s, 2)
	for _, h := range []*host{a, b} {
		h.start()
		h.block("lan")
	}
	return shared, s, a, b
}

// later is a network that a backup does not have.
func later() store.Network {
	n := lan()
	n.Name, n.Subnets = "later", prefixes("10.201.0.0/16")
	return n
}

// An etcd is restored from a backup as its manual says for a store with watchers: with a higher
// revision than before. What was made after the backup does not count as removed.
func TestRestoredAhead(t *testing.T) {
	shared, s, a, b := twoHosts(t)
	backup := shared.Backup()
	must(t, Admin{s}.Create(t.Context(), later()))
	blocks := map[*host]string{a: a.block("later").String(), b: b.block("later").String()}
	until(t, "a route", func() bool { return len(a.fabric.routes()) == 2 && len(b.fabric.routes()) == 2 })
	for _, h := range []*host{a, b} { // each has seen a change of an object that the backup has
		until(t, "a witness", func() bool { w, _, _ := h.agent.mirror.snapshot(); return shared.Changed(backup, w.Seen) })
	}
	shared.RestoreAhead(backup)
	for _, h := range []*host{a, b} {
		until(t, "it is reported", h.reports("data of the store: it does not have network later"))
		if h.conf("later") == "" || h.block("later").String() != blocks[h] || len(h.fabric.routes()) != 2 {
			t.Errorf("%s: configuration %q, routes %v", h.name, h.conf("later"), h.fabric.routes())
		}
	}
	must(t, Admin{s}.Create(t.Context(), later()))
	for _, h := range []*host{a, b} {
		until(t, "nothing is missing", func() bool { return !h.reports("data of the store")() })
		if h.block("later").String() != blocks[h] {
			t.Errorf("%s has another block: %s", h.name, h.block("later"))
		}
	}
}

// A host was stopped while the store was restored, and others have written to it since.
func TestRestoredWhileStopped(t *testing.T) {
	shared, s, a, b := twoHosts(t)
	backup := shared.Backup()
	must(t, Admin{s}.Create(t.Context(), later()))
	a.block("later")
	until(t, "a witness", func() bool { w, _, _ := a.agent.mirror.snapshot(); return shared.Changed(backup, w.Seen) })
	a.stop()
	shared.RestoreAhead(backup)
	until(t, "the other host has noticed it", b.reports("data of the store"))
	a.start()
	until(t, "it is reported", a.reports("data of the store: it does not have network later"))
	if a.conf("later") == "" {
		t.Error("its configuration is gone")
	}
}

// An object that was changed while the tables were read does not show that the store went back.
func TestWitness(t *testing.T) {
	node := store.Node{ID: "n"}
	for _, c := range []struct {
		name       string
		known, now int64
		at         int64
		want       bool
	}{
		{"the same", 5, 5, 9, false},
		{"a later change", 5, 7, 9, false},
		{"an earlier one", 7, 5, 9, true},
		{"a change after the reading", 12, 5, 9, false},
		{"of a restored store with a higher revision", 12, 5, 1009, true},
	} {
		var w, seen witness
		w.see(node, store.At(c.known))
		w.see(store.Entry{Network: "lan"}, store.At(99))
		seen.see(node, store.At(c.now))
		at := store.InHistory(c.at, "h")
		if err := w.wentBack(&reading{seen: seen, at: [4]store.Revision{at, at, at, at}}); (err != nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
