// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance_test shows how the tests of a plugin of another project run the conformance suite.
package conformance_test

import (
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
)

// Main gives the tests a network, /run and /var/lib of their own.
func TestMain(m *testing.M) { conformance.Main(m) }

func TestConformance(t *testing.T) {
	conf := conformance.Object{"ipam": json.RawMessage(`{"type": "sh-ipam", "prefix": "10.44.0"}`)}
	conformance.Run(t, "../sh-ipam", conformance.Subject{Type: "sh-ipam", Kind: "ipam", MinVersion: "1.0.0", Conf: conf})
}
