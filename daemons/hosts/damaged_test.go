// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// damaged is a table in which the object of one key cannot be read.
type damaged[T store.Object] struct {
	store.Table[T]
	key string
}

func (d damaged[T]) List(ctx context.Context, prefix string) ([]store.Item[T], store.Revision, error) {
	items, at, err := d.Table.List(ctx, prefix)
	if err == nil && strings.HasPrefix(d.key, prefix) {
		err = unreadable()
	}
	return items, at, err
}

type damagedStore struct{ store.Store }

func (s damagedStore) Entries() store.Table[store.Entry] {
	return damaged[store.Entry]{s.Store.Entries(), "lan/e"}
}

func (s damagedStore) Blocks() store.Table[store.Block] {
	return damaged[store.Block]{s.Store.Blocks(), "other/10.201.0.0-24"}
}

// Force removes a network with an endpoint that cannot be read. Unreadable objects of
// another network do not matter.
func TestForceWithDamage(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	block := store.Block{Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "a"}
	_, err := s.Blocks().Create(t.Context(), block, nil)
	must(t, err)
	a := Admin{damagedStore{s}}
	if err := a.Remove(t.Context(), "lan", false); err == nil {
		t.Error("it was removed without force")
	}
	must(t, a.Remove(t.Context(), "lan", true))
	if _, err := s.Blocks().Get(t.Context(), block.Key()); err == nil {
		t.Error("its block is still there")
	}
}
