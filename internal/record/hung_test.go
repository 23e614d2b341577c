// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// A stopped process holds a lock. It blocks only what needs that lock, and only for a limited
// time. The error names the process.
func TestHolderThatIsStopped(t *testing.T) {
	s := New(t.TempDir())
	o := owner.Of("pods", "c1", "eth0")
	f, other := fact(), Fact{Name: "another"}
	if err := s.Hold(t.Context(), f, o, nil); err != nil {
		t.Fatal(err)
	}
	write(t, s, sample("c1"))
	keep := func(Fact) error { return nil }
	collect := func(ctx context.Context) error { return tryAll(s.Collecting(ctx)) }
	for name, c := range map[string]struct {
		path string
		do   map[string]func(context.Context) error
	}{
		"a fact": {s.factDir(f.Name), map[string]func(context.Context) error{
			"Hold":     func(ctx context.Context) error { return s.Hold(ctx, f, owner.Of("pods", "c2", "eth0"), nil) },
			"Release":  func(ctx context.Context) error { return s.Release(ctx, f.Name, o, keep) },
			"WithFact": func(ctx context.Context) error { return s.WithFact(ctx, f.Name, keep) },
		}},
		"the records": {filepath.Join(s.Path, claim.Attachments), map[string]func(context.Context) error{
			"Collecting": collect,
			"Repairing":  func(ctx context.Context) error { return tryAll(s.Repairing(ctx)) },
		}},
	} {
		pid, end := nettest.HungLocker(t, c.path)
		for what, do := range c.do {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			err := do(ctx)
			if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) {
				t.Errorf("%s beside the holder of %s: %v", what, name, err)
			}
			cancel()
		}
		if err := s.Hold(t.Context(), other, o, nil); err != nil {
			t.Errorf("another fact: %v", err)
		}
		end()
		for what, do := range c.do {
			if err := do(t.Context()); err != nil {
				t.Errorf("%s after the end: %v", what, err)
			}
		}
	}
}

func tryAll(done func(), err error) error {
	if err == nil {
		done()
	}
	return err
}
