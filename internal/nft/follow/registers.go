// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// registers are the fields that a rule has loaded, in words of four bytes: adjacent fields
// form one key.
type registers [16]field

// word is the index of a register's first word: the first four registers have 16 bytes, the
// others 4.
func word(n uint32) int {
	if n > unix.NFT_REG_4 {
		return int(n-unix.NFT_REG32_00) % len(registers{})
	}
	return int(4*(n-unix.NFT_REG_1)) % len(registers{})
}

func (r *registers) at(reg uint32) field { return r[word(reg)] }

// load puts a field of size bytes into a register; size 0 is the usual size of its kind.
func (r *registers) load(reg uint32, f field, size uint32) {
	switch {
	case size > 0:
	case strings.IndexByte("inps", f.kind) >= 0:
		size = 4
	default:
		size = unix.IFNAMSIZ
	}
	first := word(reg)
	for w := first + 1; w < len(r) && 4*(w-first) < int(size); w++ {
		r[w] = field{kind: '+'}
	}
	r[first] = f
}

// part is one field of a key, with its place in the key.
type part struct {
	field
	from, to int
}

// parts returns the fields of a key of size bytes that begins in a register.
func (r *registers) parts(reg uint32, size int) (list []part) {
	first := word(reg)
	for at := 0; at < size && first+at/4 < len(r); at += 4 {
		p := part{r[first+at/4], at, min(at+4, size)}
		if p.kind == '+' && at > 0 {
			list[len(list)-1].to = p.to
			continue
		}
		list = append(list, p)
	}
	return list
}

// of is the part's field of an element's keys.
func (p part) of(m nft.Member) nft.Member {
	if p.to > len(m.Low) || p.to > len(m.High) {
		return nft.Member{}
	}
	return nft.Member{Low: m.Low[p.from:p.to], High: m.High[p.from:p.to]}
}
