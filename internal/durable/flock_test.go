// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() }) //nolint:errcheck // twice
		return f
	}
	first, second := open(), open()
	if err := LockExclusiveLimited(t.Context(), int(first.Fd())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := LockExclusiveLimited(ctx, int(second.Fd())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { first.Close() }) //nolint:errcheck // only locked
	if err := LockExclusiveLimited(t.Context(), int(second.Fd())); err != nil {
		t.Errorf("after the first: %v", err)
	}
	if err := LockExclusiveLimited(t.Context(), -1); err == nil {
		t.Error("no file is locked")
	}
}

func TestWithin(t *testing.T) {
	for name, c := range map[string]struct{ has, want time.Duration }{
		"no end":     {0, patience},
		"a late end": {time.Hour, patience},
		"a near end": {10 * time.Second, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := t.Context(), func() {}
			now := time.Now()
			if c.has > 0 {
				ctx, cancel = context.WithDeadline(ctx, now.Add(c.has))
			}
			defer cancel()
			ctx, cancel2 := WithLockLimit(ctx)
			defer cancel2()
			end, ok := ctx.Deadline()
			if got := end.Sub(now); !ok || got != c.want {
				t.Errorf("%s: %v", name, got)
			}
		})
	}
}
