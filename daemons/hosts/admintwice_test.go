// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// meanwhile is a store in which something happens after the first list of the networks.
type meanwhile struct {
	store.Store
	happens *func()
}

func (m meanwhile) Networks() store.Table[store.Network] {
	return meanwhileNetworks{m.Store.Networks(), m.happens}
}

type meanwhileNetworks struct {
	store.Table[store.Network]
	happens *func()
}

func (m meanwhileNetworks) List(ctx context.Context, prefix string) (out []store.Item[store.Network], at store.Revision, err error) {
	out, at, err = m.Table.List(ctx, prefix)
	now := *m.happens
	*m.happens = func() {}
	now()
	return out, at, err
}

// Two users create overlapping networks at once. The first one stays.
func TestOverlapAtOnce(t *testing.T) {
	s := openStore(t)
	other := lan()
	other.Name = "other"
	happens := func() { must(t, Admin{s}.Create(t.Context(), other)) }
	if err := (Admin{meanwhile{s, &happens}}).Create(t.Context(), lan()); err == nil || !strings.Contains(err.Error(), "overlaps 10.200.0.0/16 of network other") {
		t.Errorf("the second: %v", err)
	}
	if _, err := s.Networks().Get(t.Context(), "lan"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the second: %v", err)
	}
	if _, err := s.Networks().Get(t.Context(), "other"); err != nil {
		t.Errorf("the first: %v", err)
	}
}
