// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// A stopped process keeps its lock. The wait ends with an error that names the process and asks
// to try again. When the process ends, its lock is free.
func TestHolderThatIsStopped(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only locked
	pid, end := nettest.HungLocker(t, f.Name())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for name, lock := range map[string]func(context.Context, int) error{"exclusive": durable.LockExclusiveLimited, "shared": durable.LockSharedLimited} {
		err := lock(ctx, int(f.Fd()))
		if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid+" sleep") {
			t.Errorf("%s: %v", name, err)
		}
	}
	end()
	if err := durable.LockExclusiveLimited(t.Context(), int(f.Fd())); err != nil {
		t.Errorf("after its end: %v", err)
	}
}
