// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// maxTries limits how many blocks of a subnet freeBlock tries.
const maxTries = 1 << 20

// freeBlock chooses a block of length bits within subnet that overlaps none of claimed. If there is
// none, it returns false. The search starts at a hash of seed. So two hosts that search at the
// same time seldom choose the same block.
func freeBlock(subnet netip.Prefix, length int, claimed []netip.Prefix, seed string) (netip.Prefix, bool) {
	count := uint64(1) << min(length-subnet.Bits(), maxSpan)
	h := fnv.New64a()
	h.Write([]byte(seed))
	first := h.Sum64() % count
	for n := range min(count, maxTries) {
		b := nth(subnet, length, (first+n)%count)
		if !slices.ContainsFunc(claimed, b.Overlaps) {
			return b, true
		}
	}
	return netip.Prefix{}, false
}

// nth returns the i-th of the blocks of length bits in subnet.
func nth(subnet netip.Prefix, length int, i uint64) netip.Prefix {
	base := subnet.Masked().Addr().As16()
	hi, lo := binary.BigEndian.Uint64(base[:8]), binary.BigEndian.Uint64(base[8:])
	shift := subnet.Addr().BitLen() - length
	if shift >= 64 {
		hi |= i << (shift - 64)
	} else {
		lo |= i << shift
		hi |= i >> (64 - shift) // for a shift of 64, Go's result is zero
	}
	binary.BigEndian.PutUint64(base[:8], hi)
	binary.BigEndian.PutUint64(base[8:], lo)
	addr := netip.AddrFrom16(base)
	if subnet.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, length)
}

// bitsOf returns the prefix length of one host's block of a subnet.
func bitsOf(n *store.Network, subnet netip.Prefix) int {
	if subnet.Addr().Is4() {
		return n.BlockBits4
	}
	return n.BlockBits6
}

// holding describes which blocks of a network a node holds.
type holding struct {
	have    []netip.Prefix // at most one for each subnet, in the order of the subnets
	extra   []store.Block  // blocks to give back: a second block of a subnet, or a block of one of the network's earlier subnets
	missing []netip.Prefix // subnets of which the node holds no block
	lost    []store.Block  // former blocks of this node that another node holds now
}

// complete reports whether containers can get addresses of all subnets.
func (h *holding) complete() bool { return len(h.missing) == 0 && len(h.lost) == 0 }

// holdingOf sorts the blocks of a network for a node. remembered lists the blocks that the node
// had before.
func holdingOf(n *store.Network, node string, blocks []store.Block, remembered []netip.Prefix) (h holding) {
	for _, subnet := range n.Subnets {
		i := slices.IndexFunc(blocks, func(b store.Block) bool {
			return b.Node == node && fits(n, subnet, b.Prefix) && (!slices.ContainsFunc(remembered, subnet.Overlaps) || slices.Contains(remembered, b.Prefix))
		})
		if i < 0 { // the node holds none of its former blocks, and cannot claim one any more
			if _, reclaimable := old(n, subnet, remembered, claimedBlocks(n, subnet, blocks)); !reclaimable {
				i = slices.IndexFunc(blocks, func(b store.Block) bool { return b.Node == node && fits(n, subnet, b.Prefix) })
			}
		}
		if i < 0 {
			h.missing = append(h.missing, subnet)
			continue
		}
		h.have = append(h.have, blocks[i].Prefix)
	}
	for _, b := range blocks {
		switch {
		case b.Node == node && !slices.Contains(h.have, b.Prefix):
			h.extra = append(h.extra, b)
		case b.Node != node && possible(n, b.Prefix) && slices.ContainsFunc(remembered, b.Prefix.Overlaps):
			h.lost = append(h.lost, b)
		}
	}
	return h
}

// possible reports whether a host can claim this block of a network. If not, the block's record
// reserves no addresses and is ignored.
func possible(n *store.Network, block netip.Prefix) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return fits(n, s, block) })
}

// fits reports whether a block has the length that the network sets for blocks of a subnet.
func fits(n *store.Network, subnet, block netip.Prefix) bool {
	return block.Bits() == bitsOf(n, subnet) && subnet.Contains(block.Addr())
}
