// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"net/netip"
	"testing"
)

// TestKeeps checks which addresses of a pool are reserved, and for what.
func TestKeeps(t *testing.T) {
	p := &Pool{
		Has:    netip.MustParsePrefix("10.1.0.1/24"),
		HasAux: map[string]netip.Prefix{"router": netip.MustParsePrefix("10.1.0.7/24")},
	}
	for text, want := range map[string]string{"10.1.0.1": "the gateway's", "10.1.0.7": "auxAddresses.router", "10.1.0.2": "", "10.1.0.0": ""} {
		if got, ok := p.Keeps(netip.MustParseAddr(text)); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", text, got, ok, want)
		}
	}
	if got, ok := new(Pool).Keeps(netip.Addr{}); ok {
		t.Errorf("a pool without a gateway keeps %q", got)
	}
}
