// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
)

func TestAddAgainElsewhere(t *testing.T) {
	const conf = `"ipMasq": true, `
	newWorld(t).AddsAgain(conf+endpointtest.Static("10.9.0.5/24 10.9.0.1"), conf+endpointtest.Static("10.9.0.6/24 10.9.0.1"))
}
