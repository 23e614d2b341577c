// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"testing"

	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin,
		plugintest.Case{Subject: plugintest.Subject(t, "sbr")},
		plugintest.Case{Subject: plugintest.Subject(t, "sbr-table")})
}
