// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/owner"
)

// A DEL waits while an ADD commits the elements of a fact, and then removes the fact. If the DEL comes
// first, the ADD commits nothing.
func TestWhileHolding(t *testing.T) {
	run := t.TempDir()
	add, del := New(run), New(run)
	me := owner.Of("net", "c1", "eth0")
	hold := func() {
		t.Helper()
		if err := add.Hold(t.Context(), Fact{Name: "fact"}, me, nil); err != nil {
			t.Fatal(err)
		}
	}
	release := func(removed chan<- struct{}) error {
		return del.Release(t.Context(), "fact", me, func(Fact) error { close(removed); return nil })
	}
	hold()
	removed, done := make(chan struct{}), make(chan error)
	err := add.WhileHolding(t.Context(), []string{"fact"}, me, func() error {
		go func() { done <- release(removed) }()
		select {
		case <-removed:
			t.Error("the DEL looked for elements before they were committed")
		case <-time.After(20 * time.Millisecond):
		}
		return nil
	})
	if err = errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	<-removed
	never := func() error { t.Error("committed without a fact"); return nil }
	if err := add.WhileHolding(context.Background(), []string{"fact"}, me, never); !errors.Is(err, ErrReleased) {
		t.Error(err)
	}
	hold()
	if err := add.WhileHolding(t.Context(), []string{"fact"}, me, func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := release(make(chan struct{})); err != nil {
		t.Error(err)
	}
}
