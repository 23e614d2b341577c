// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// If a process hangs with the lock, an agent does not wait for ever: it gets an error that names the process.
func TestLockHeldByAHungProcess(t *testing.T) {
	p := paths.Paths{Run: t.TempDir()}
	if err := durable.MakeDir(p.Run, recordDir); err != nil {
		t.Fatal(err)
	}
	pid, end := nettest.HungLocker(t, p.Run+"/"+recordDir)
	for limit := 200 * time.Millisecond; ; limit *= 4 { // a busy machine may take all of a short limit
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := lock(ctx, p)
		late := ctx.Err()
		cancel()
		if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) {
			t.Fatal(err)
		}
		if late == nil {
			break
		}
		if limit > 10*time.Second {
			t.Fatal("it waits as long as its caller does")
		}
	}
	end()
	unlock, err := lock(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
