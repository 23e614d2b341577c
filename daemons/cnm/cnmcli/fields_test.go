// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/pages"
)

// TestFieldTables compares the table on the page of each plugin with the code.
func TestFieldTables(t *testing.T) {
	pages.Tables(t, Plugins(), "./daemons/cnm/cnmcli", endpointtest.Updates())
}
