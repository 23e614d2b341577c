// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// While a stopped process holds the lock, other processes that add rules wait until their timeout,
// and their error names the process. Elements need no lock. A new set for a prefix length is added
// without the lock after a second.
func TestHolderThatIsStopped(t *testing.T) {
	c := open(t)
	only, err := NewConditions("pods", []string{"ip", "saddr", "10.0.0.0/8"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pid, end := nettest.HungLocker(t, filepath.Join(c.runDir, lockFile))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	c.Queue(only.Ensure())
	err = c.Commit(ctx)
	if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) {
		t.Errorf("beside the holder: %v", err)
	}
	began := time.Now()
	c.Add(network()...)
	c.Add(attachment()...)
	commit(t, c)
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("elements beside the holder took %v", took)
	}
	end()
	c.Queue(only.Ensure())
	commit(t, c)
}
