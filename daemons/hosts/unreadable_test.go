// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// newer is a store in which a newer Patchbay has written the network "new".
type newer struct{ store.Store }

func (n newer) Networks() store.Table[store.Network] { return newerNetworks{n.Store.Networks()} }

type newerNetworks struct{ store.Table[store.Network] }

func unreadable() error { return fmt.Errorf("network new: %w: of schema 2", store.ErrUnreadable) }

func (n newerNetworks) List(ctx context.Context, prefix string) ([]store.Item[store.Network], store.Revision, error) {
	items, at, err := n.Table.List(ctx, prefix)
	isNew := func(i store.Item[store.Network]) bool { return i.Object.Name == "new" }
	if err == nil && slices.ContainsFunc(items, isNew) {
		return slices.DeleteFunc(items, isNew), at, unreadable()
	}
	return items, at, err
}

func (n newerNetworks) Get(ctx context.Context, key string) (store.Item[store.Network], error) {
	item, err := n.Table.Get(ctx, key)
	if err == nil && key == "new" {
		return store.Item[store.Network]{}, unreadable()
	}
	return item, err
}

// This Patchbay cannot read a network. No host leaves for that: the host stays present, keeps its
// other networks, and gives back no block of that network. Force removes the network.
func TestUnreadableNetwork(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a := newHost(t, newer{s}, 1)
	a.start()
	a.block("lan")
	a.stop() // a running agent could still claim a block of the new network
	other := lan()
	other.Name, other.Subnets = "new", prefixes("10.201.0.0/16")
	must(t, Admin{s}.Create(t.Context(), other))
	block := store.Block{Network: "new", Prefix: prefix("10.201.3.0/24"), Node: a.agent.ID()}
	_, err := s.Blocks().Create(t.Context(), block, nil)
	must(t, err)
	must(t, s.Entries().Delete(t.Context(), presenceOf(t, s), ""))
	a.start()
	until(t, "it is present", func() bool { return presenceOf(t, s) != "" })
	until(t, "it is logged", func() bool { return a.log.has("of schema 2") })
	if _, err := s.Blocks().Get(t.Context(), block.Key()); err != nil || a.conf("lan") == "" {
		t.Errorf("%v; lan: %s", err, a.conf("lan"))
	}
	listing, err := Admin{newer{s}}.List(t.Context(), a.agent.dir)
	must(t, err)
	if len(listing.Networks) != 1 || listing.Remembered != "" || !strings.Contains(strings.Join(listing.Wrong, "\n"), "of schema 2") {
		t.Errorf("%+v", listing)
	}
	if err := (Admin{newer{s}}).Remove(t.Context(), "new", false); err == nil {
		t.Error("it was removed without force")
	}
	must(t, Admin{newer{s}}.Remove(t.Context(), "new", true))
	if _, err := s.Networks().Get(t.Context(), "new"); err == nil {
		t.Error("it is still there")
	}
}

// presenceOf returns the key of a host's presence.
func presenceOf(t *testing.T, s store.Store) string {
	t.Helper()
	items, _, err := s.Entries().List(t.Context(), presence+"/")
	must(t, err)
	if len(items) == 0 {
		return ""
	}
	return items[0].Object.Key()
}
