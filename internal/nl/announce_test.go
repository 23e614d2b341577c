// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

// The packet matches the RFC to the last byte.
func TestAdvertisement(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	for _, c := range []struct {
		mac  net.HardwareAddr
		want string
	}{
		{mac, "88000000" + "20000000" + "fd000000000000000000000000000005" + "0201020000000005"},
		{nil, "88000000" + "20000000" + "fd000000000000000000000000000005"},
	} {
		if got := hex.EncodeToString(advertisement(netip.MustParseAddr("fd00::5"), c.mac)); got != c.want {
			t.Errorf("mac %v: got %s, want %s", c.mac, got, c.want)
		}
	}
}
