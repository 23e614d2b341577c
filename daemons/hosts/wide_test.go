// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// TestWideBlockLosesNothing adds a record that no host can have written. No host loses its block
// for it.
func TestWideBlockLosesNothing(t *testing.T) {
	n := lan()
	own := store.Block{Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "a"}
	wide := store.Block{Network: "lan", Prefix: prefix("10.200.0.0/16"), Node: "b"}
	h := holdingOf(&n, "a", []store.Block{wide, own}, []netip.Prefix{own.Prefix})
	if !h.complete() || len(h.have) != 1 {
		t.Errorf("%+v", h)
	}
}

// TestWideBlockTakesNothing adds a record that no host can have written. The record stops no host
// from claiming a block.
func TestWideBlockTakesNothing(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	_, err := s.Blocks().Create(t.Context(), store.Block{Network: "lan", Prefix: prefix("10.200.0.0/16"), Node: "b"}, nil)
	must(t, err)
	h := newHost(t, s, 1)
	h.start()
	if block := h.block("lan"); block.Bits() != lan().BlockBits4 {
		t.Errorf("it took %s", block)
	}
}
