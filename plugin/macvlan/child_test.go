// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
)

// TestChild tests the behaviour that all plugins with a master have in common.
func TestChild(t *testing.T) {
	endpointtest.Child{Plugins: []*plugin.Plugin{&Plugin, &hostlocal.Plugin, &static.Plugin}, Default: true}.Run(t)
}
