// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// counter is a minimal agent: it adds one, and now and then forgets to.
type counter struct {
	s       *Schedule
	n, want int
	broken  bool
}

func (c *counter) Actions() []Action {
	return []Action{
		{Name: "add", Weight: 30, Do: func() { c.n, c.want = c.n+1, c.want+1; c.s.Pass(time.Second) }},
		{Name: "forget", Weight: 1, Do: func() { c.want++; c.broken = true }},
	}
}

func (c *counter) Laws() error { return nil }

func (c *counter) Calm() error {
	if c.n != c.want {
		return errors.New("it forgot one")
	}
	return nil
}

// The schedules find a planted defect. The same seed takes the same steps.
func TestFindsAndRepeats(t *testing.T) {
	build := func(s *Schedule) World { return &counter{s: s} }
	for seed := uint64(1); seed < 1000; seed++ {
		trail, err := Try(t, seed, 20, build)
		if err == nil {
			continue
		}
		again, err2 := Try(t, seed, 20, build)
		if err2 == nil || !slices.Equal(trail, again) {
			t.Errorf("%v, %q\nand then %v, %q", err, trail, err2, again)
		}
		return
	}
	t.Error("no schedule found it")
}

// To package store, the store behaves like an etcd: its revision shows a loss of data.
func TestStoreLosesData(t *testing.T) {
	s := NewStore()
	c := s.Client()
	create := func(name string) {
		t.Helper()
		if _, err := c.Networks().Create(t.Context(), store.Network{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (n int, at store.Revision) {
		t.Helper()
		items, at, err := c.Networks().List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return len(items), at
	}
	create("a")
	_, first := list()
	backup := s.Backup()
	create("b")
	_, second := list()
	if !second.Follows(first) || first.Follows(second) {
		t.Errorf("%s, then %s", first, second)
	}
	s.Restore(backup)
	if n, at := list(); n != 1 || at.Follows(second) {
		t.Errorf("restored: %d at %s, was at %s", n, at, second)
	}
	for _, name := range []string{"c", "d", "e"} {
		create(name)
	}
	if _, at := list(); at.Follows(second) {
		t.Errorf("restored, and further: %s, was at %s", at, second)
	}
	s.Empty()
	if n, at := list(); n != 0 || at.Follows(first) {
		t.Errorf("emptied: %d at %s", n, at)
	}
	for _, err := range c.Networks().Watch(t.Context(), first) {
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("watch: %v", err)
		}
	}
}
