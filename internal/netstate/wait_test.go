// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"net/netip"
	"testing"
)

// The example is from RFC 4291, 2.7.1.
func TestSolicitedNode(t *testing.T) {
	if got := solicitedNode(netip.MustParseAddr("4037::1:800:200e:8c6c")); got != netip.MustParseAddr("ff02::1:ff0e:8c6c") {
		t.Errorf("got %s", got)
	}
}
