// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin, &hostlocal.Plugin) }

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{
		Subject:   plugintest.Subject(t, "host-device"),
		Delegates: []*plugin.Plugin{&hostlocal.Plugin},
	})
}
