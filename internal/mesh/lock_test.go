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
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, p); spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	end()
	unlock, err := lock(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
