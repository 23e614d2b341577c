// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// taken is a store in which host b takes a block while another host deletes it.
type taken struct{ store.Store }

func (s taken) Blocks() store.Table[store.Block] { return takenBlocks{s.Store.Blocks()} }

type takenBlocks struct{ store.Table[store.Block] }

func (t takenBlocks) Delete(ctx context.Context, key string, at store.Revision) error {
	now, err := t.Get(ctx, key)
	if err != nil {
		return err
	}
	now.Object.Node = "b"
	if _, err := t.Update(ctx, now.Object, now.Revision); err != nil {
		return err
	}
	return t.Table.Delete(ctx, key, at)
}

// Another host takes a block while its host is forgotten or leaves. The block stays.
func TestTakenMeanwhile(t *testing.T) {
	for about, give := range map[string]func(store.Store, world) error{
		"forget": func(s store.Store, _ world) error { _, err := Admin{s}.Forget(t.Context(), "a"); return err },
		"leave": func(s store.Store, w world) error {
			l := &Leaving{Store: s, Log: t.Logf}
			return l.giveBack(t.Context(), w)
		},
	} {
		s := openStore(t)
		must(t, Admin{s}.Create(t.Context(), lan()))
		block := store.Block{Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "a"}
		_, err := s.Blocks().Create(t.Context(), block, nil)
		must(t, err)
		_, err = s.Nodes().Create(t.Context(), store.Node{ID: "a", Name: "a"}, nil)
		must(t, err)
		must(t, give(taken{s}, world{Blocks: []store.Block{block}}))
		if now, err := s.Blocks().Get(t.Context(), block.Key()); err != nil || now.Object.Node != "b" {
			t.Errorf("%s: %+v, %v, want the block of b", about, now.Object, err)
		}
	}
}
