// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package all_test

import (
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestMain(m *testing.M) { plugintest.Main(m, all.Plugins()...) }

// TestContract runs the contract on the plugin `patchbay`, which runs a whole chain. Every plugin
// is a member of the chain. A fault at each step of each member leaves nothing behind.
func TestContract(t *testing.T) {
	list := all.Plugins()
	i := slices.IndexFunc(list, func(p *plugin.Plugin) bool { return p.Name == "patchbay" })
	if i < 0 {
		t.Fatal("no plugin patchbay")
	}
	chain := list[i]
	plugintest.Run(t, chain, plugintest.Case{
		Subject:   plugintest.Subject(t, "patchbay"),
		Delegates: slices.Delete(slices.Clone(list), i, i+1),
	})
}
