// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"testing"

	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "loopback")})
}
