// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"testing"

	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/ipam/storetest"
)

func TestFileStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) ipam.Store {
		return &ipam.FileStore{DataDir: t.TempDir(), Network: "net", IndexDir: t.TempDir() + "/ipam"}
	})
}

func TestFileStoreWithoutIndex(t *testing.T) {
	storetest.Run(t, func(t *testing.T) ipam.Store {
		return &ipam.FileStore{DataDir: t.TempDir(), Network: "net"}
	})
}
