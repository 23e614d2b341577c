// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
)

// routed holds the blocks that have routes to peers. There may be thousands. The blocks of a
// network nearly always have the same prefix length.
type routed struct {
	peers map[netip.Prefix]string // id of the peer that has the block
	bits  map[int]bool            // prefix lengths in use
}

func (c *routed) add(block netip.Prefix, peer string) {
	if c.peers == nil {
		c.peers, c.bits = make(map[netip.Prefix]string), make(map[int]bool)
	}
	c.peers[block], c.bits[block.Bits()] = peer, true
}

// overlap returns an error if a block overlaps a claimed one. overlap looks up blocks of the
// same or a shorter prefix length. overlap searches all blocks only if some have a longer one.
func (c *routed) overlap(block netip.Prefix) error {
	longer := false
	for bits := range c.bits {
		if bits > block.Bits() {
			longer = true
			continue
		}
		p, err := block.Addr().Prefix(bits)
		if peer, taken := c.peers[p]; err == nil && taken {
			return fmt.Errorf("block %v overlaps %v of peer %s", block, p, peer)
		}
	}
	if !longer {
		return nil
	}
	for p, peer := range c.peers {
		if p.Overlaps(block) {
			return fmt.Errorf("block %v overlaps %v of peer %s", block, p, peer)
		}
	}
	return nil
}
