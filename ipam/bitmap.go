// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// The index stores the taken addresses in chunks. A chunk is a bitmap of 1,024 adjacent
// addresses. A hash of their common bits finds the chunk. So the index serves any range of IPv4
// or IPv6 without knowing the configuration.
const (
	chunkBits  = 10
	chunkAddrs = 1 << chunkBits
	bitmapSize = chunkAddrs / 8
)

// number is an IPv6 address as an integer. An IPv4 address is first mapped to IPv6 (::ffff:a.b.c.d).
type number struct{ hi, lo uint64 }

func numberOf(a netip.Addr) number {
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n number) addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b).Unmap()
}

// base returns the first number of the chunk that holds n.
func (n number) base() number { return number{n.hi, n.lo &^ (chunkAddrs - 1)} }

// offset returns the position of n in its chunk.
func (n number) offset() int { return int(n.lo & (chunkAddrs - 1)) }

// next returns the base of the chunk that follows the chunk with the base n.
func (n number) next() number {
	lo, carry := bits.Add64(n.lo, chunkAddrs, 0)
	return number{n.hi + carry, lo}
}

// hash spreads the bases of chunks over a table.
func (n number) hash() uint64 {
	h := (n.hi ^ bits.RotateLeft64(n.lo>>chunkBits, 31)) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

type bitmap []byte

func (b bitmap) set(i int, on bool) {
	if on {
		b[i/8] |= 1 << (i % 8)
	} else {
		b[i/8] &^= 1 << (i % 8)
	}
}

// firstClear returns the first clear bit from first to last, both included, or -1.
func (b bitmap) firstClear(first, last int) int {
	for w := first / 64; w <= last/64; w++ {
		word := ^binary.LittleEndian.Uint64(b[8*w:])
		if w == first/64 {
			word &= ^uint64(0) << (first % 64)
		}
		if word != 0 {
			if i := 64*w + bits.TrailingZeros64(word); i <= last {
				return i
			}
			return -1
		}
	}
	return -1
}
