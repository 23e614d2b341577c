// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/plugin/tuning"
)

func TestMain(m *testing.M) {
	plugintest.Main(m, &Plugin, &bridge.Plugin, &hostlocal.Plugin, &tuning.Plugin)
}

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin,
		plugintest.Case{Subject: plugintest.Subject(t, "wrap"), Delegates: []*plugin.Plugin{&bridge.Plugin, &hostlocal.Plugin}},
		plugintest.Case{Subject: plugintest.Subject(t, "wrap-chained"), Delegates: []*plugin.Plugin{&tuning.Plugin}, UndoneByDEL: true})
}
