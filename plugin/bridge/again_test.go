// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
)

func TestAddAgainElsewhere(t *testing.T) {
	const conf = `"bridge": "tbr0", "ipMasq": true, "macspoofchk": true, `
	newWorld(t).AddsAgain(conf+endpointtest.Static("10.9.0.5/24"), conf+endpointtest.Static("10.9.0.6/24"))
}
