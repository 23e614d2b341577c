// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/patchbay-net/patchbay/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
