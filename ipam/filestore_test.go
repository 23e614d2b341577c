// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/spec"
)

func TestFileStore(t *testing.T) {
	run(t, func(t *testing.T) *ipam.FileStore {
		return &ipam.FileStore{DataDir: t.TempDir(), Network: "net", IndexDir: t.TempDir() + "/ipam"}
	})
}

func TestFileStoreWithoutIndex(t *testing.T) {
	run(t, func(t *testing.T) *ipam.FileStore {
		return &ipam.FileStore{DataDir: t.TempDir(), Network: "net"}
	})
}

// A stopped process holds the lock of the addresses. Others wait until their timeout, and their
// error names that process.
func TestHolderThatIsStopped(t *testing.T) {
	s := &ipam.FileStore{DataDir: t.TempDir(), Network: "net"}
	tx, err := s.Begin(t.Context(), ipam.Write) // creates the directory
	if err != nil {
		t.Fatal(err)
	}
	tx.Close()
	pid, end := nettest.HungLocker(t, filepath.Join(s.DataDir, s.Network, "lock"))
	for _, mode := range []ipam.Mode{ipam.Write, ipam.ReadOnly} {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
		defer cancel()
		_, err := s.Begin(ctx, mode)
		if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) {
			t.Errorf("beside the holder: %v", err)
		}
	}
	end()
	if tx, err = s.Begin(t.Context(), ipam.Write); err != nil {
		t.Fatal(err)
	}
	tx.Close()
}
