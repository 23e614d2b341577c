// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestContract(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("vrf"))
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "vrf")})
}
