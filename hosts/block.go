// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/store"
)

// maxTries bounds how many blocks of a subnet are looked at.
const maxTries = 1 << 20

// freeBlock chooses a block of length bits within subnet that overlaps none of
// taken; false when there is none. Where it begins to look depends on who asks,
// so that two that ask at once seldom choose the same.
func freeBlock(subnet netip.Prefix, length int, taken []netip.Prefix, who string) (netip.Prefix, bool) {
	count := uint64(1) << min(length-subnet.Bits(), maxSpan)
	h := fnv.New64a()
	h.Write([]byte(who))
	first := h.Sum64() % count
	for n := range min(count, maxTries) {
		b := nth(subnet, length, (first+n)%count)
		if !slices.ContainsFunc(taken, b.Overlaps) {
			return b, true
		}
	}
	return netip.Prefix{}, false
}

// nth is the block number i of those of length bits in subnet.
func nth(subnet netip.Prefix, length int, i uint64) netip.Prefix {
	base := subnet.Masked().Addr().As16()
	hi, lo := binary.BigEndian.Uint64(base[:8]), binary.BigEndian.Uint64(base[8:])
	shift := subnet.Addr().BitLen() - length
	if shift >= 64 {
		hi |= i << (shift - 64)
	} else {
		lo |= i << shift
		hi |= i >> (64 - shift) // nothing when shift is 0: Go shifts by 64, too
	}
	binary.BigEndian.PutUint64(base[:8], hi)
	binary.BigEndian.PutUint64(base[8:], lo)
	addr := netip.AddrFrom16(base)
	if subnet.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, length)
}

// bitsOf is how long one host's block of a subnet is.
func bitsOf(n *store.Network, subnet netip.Prefix) int {
	if subnet.Addr().Is4() {
		return n.BlockBits4
	}
	return n.BlockBits6
}

// holding is what one node has of one network.
type holding struct {
	have    []netip.Prefix // at most one of each subnet, in their order
	extra   []store.Block  // more than one, or of another time's subnets: to be given back
	missing []netip.Prefix // subnets without a block
	lost    []store.Block  // what was ours by what we remember, and is somebody else's now
}

// complete says whether containers can be given addresses.
func (h *holding) complete() bool { return len(h.missing) == 0 && len(h.lost) == 0 }

// holdingOf sorts the blocks of a network from the view of a node that
// remembers to have had some of them.
func holdingOf(n *store.Network, node string, blocks []store.Block, remembered []netip.Prefix) (h holding) {
	for _, subnet := range n.Subnets {
		i := slices.IndexFunc(blocks, func(b store.Block) bool {
			return b.Node == node && fits(n, subnet, b.Prefix) && (!slices.ContainsFunc(remembered, subnet.Overlaps) || slices.Contains(remembered, b.Prefix))
		})
		if i < 0 { // none that we remember, and cannot have again
			if _, again := old(n, subnet, remembered, takenOf(n, subnet, blocks)); !again {
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

// possible says whether a block is one that a host can claim of a network: the
// record of any other block takes none away.
func possible(n *store.Network, block netip.Prefix) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return fits(n, s, block) })
}

// fits says whether a block is one of a subnet as the network divides it.
func fits(n *store.Network, subnet, block netip.Prefix) bool {
	return block.Bits() == bitsOf(n, subnet) && subnet.Contains(block.Addr())
}
