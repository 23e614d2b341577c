// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

// Answer says whether a statement is true of a packet, or of all packets of a network.
type Answer int

// Perhaps means that the answer depends on unknown bits.
const (
	Yes Answer = iota
	Perhaps
	No
)

// cause says why something is not known. It has a bit for each reason.
type cause uint8

const (
	unsaid    cause = 1 << iota // none of the others
	ofFew                       // it differs between packets of any traffic, so few packets have one certain value
	ofFrames                    // with ofFew: most frames have another value than the compared one
	otherLink                   // it is the link at the other end
	portName                    // it is the name of one of Traffic.Ports
	ofState                     // it is the state of the connection
	notRead                     // it is in a set that was not read
	outside                     // it is an address for which there is Outside
)

// match says whether packets meet a condition, or all conditions of a rule.
type match struct {
	is  Answer
	why cause // why is is Perhaps
}

// and returns the condition that both m and o are true.
func (m match) and(o match) match {
	switch {
	case m.is == No || o.is == Yes:
		return m
	case o.is == No || m.is == Yes:
		return o
	}
	return match{Perhaps, m.why | o.why}
}

// or returns the condition that m or o is true. It is one of few packets only if both m and o are.
func (m match) or(o match) match {
	switch {
	case m.is == Yes || o.is == No:
		return m
	case o.is == Yes || m.is == No:
		return o
	}
	return match{Perhaps, (m.why|o.why)&^ofFew | m.why&o.why&ofFew}
}

// not inverts a condition, if invert is set.
func (m match) not(invert bool) match {
	if !invert {
		return m
	}
	return match{No - m.is, m.why}.open()
}

// open returns the condition for a comparison with something else than a value or a list of values.
func (m match) open() match {
	if m.why&(ofFrames|otherLink) != 0 {
		m.why &^= ofFew
	}
	return m
}

// cell is a byte of a packet, of which only some bits may be known.
type cell struct {
	value, known byte // the bits of value that are not known are 0
	why          cause
}

type cells []cell

// blank returns bytes that are not known.
func blank(n int, why cause) cells {
	return slices.Repeat(cells{{why: why}}, n)
}

func cellsOf(b ...byte) cells {
	c := make(cells, len(b))
	for i, v := range b {
		c[i] = cell{value: v, known: 0xff}
	}
	return c
}

// why returns why not all bits are known.
func (c cells) why() (why cause) {
	for _, b := range c {
		if b.known != 0xff {
			why |= b.why
		}
	}
	return why
}

// only reports whether no bit is known, and why is the only reason.
func (c cells) only(why cause) bool {
	return !slices.ContainsFunc(c, func(b cell) bool { return b.known != 0 || b.why != why })
}

// address reports whether the bytes are those of an address outside.
func (c cells) address() bool { return (len(c) == 4 || len(c) == 16) && c.only(outside) }

// equal compares with a value. Different bits are known to differ even if others are not known.
func (c cells) equal(value []byte) match {
	for i, b := range c {
		if (b.value^value[i])&b.known != 0 {
			return match{is: No}
		}
	}
	if why := c.why(); why != 0 {
		return match{Perhaps, why}
	}
	return match{is: Yes}
}

// bounds returns the lowest and the highest value that the bytes may have.
func (c cells) bounds() (low, high []byte) {
	for _, b := range c {
		low, high = append(low, b.value), append(high, b.value|^b.known)
	}
	return low, high
}

// within reports whether the value is in a range.
func (c cells) within(first, last []byte) match {
	switch low, high := c.bounds(); {
	case bytes.Compare(high, first) < 0 || bytes.Compare(last, low) < 0:
		return match{is: No}
	case bytes.Compare(first, low) <= 0 && bytes.Compare(high, last) <= 0:
		return match{is: Yes}
	}
	return match{Perhaps, c.why()}
}

// masked returns the bytes with a mask, changed by xor. A bit whose mask is zero is known.
func (c cells) masked(mask, xor []byte) cells {
	out := slices.Clone(c)
	for i, b := range c {
		out[i].known = b.known | ^mask[i]
		out[i].value = (b.value&mask[i] ^ xor[i]) & out[i].known
	}
	return out
}

// registers are the kernel's registers: sixteen words. A key of several fields has them in adjacent words.
type registers struct {
	bytes [64]cell
	begin [16]bool // a field begins in the word
}

// forget makes all registers unknown.
func (r *registers) forget() {
	*r = registers{}
	for i := range r.bytes {
		r.bytes[i].why = unsaid
	}
}

// first returns the first byte of a register. NFT_REG_1 to NFT_REG_4 name registers of four words each,
// NFT_REG32_00 to NFT_REG32_15 registers of one word.
func first(reg uint32) uint32 {
	if reg <= unix.NFT_REG_4 {
		return 16 * (reg - unix.NFT_REG_1)
	}
	return 4 * (reg - unix.NFT_REG32_00)
}

// at returns the bytes of a register.
func (r *registers) at(reg, size uint32) cells {
	at, all := first(reg), uint32(len(r.bytes))
	if at > all || size > all-at {
		return blank(int(min(size, all)), unsaid)
	}
	return r.bytes[at : at+size]
}

// load fills a register. The kernel fills the last word with zeros.
func (r *registers) load(reg uint32, c cells) {
	padded := append(slices.Clone(c), cellsOf(make([]byte, -len(c)&3)...)...)
	at := int(first(reg)) / 4
	for i := range min(copy(r.at(reg, uint32(len(padded))), padded)/4, len(r.begin)-at) {
		r.begin[at+i] = i == 0
	}
}

// field is a field of a key.
type field struct {
	cells
	from, to int // its place in the key
}

// key returns the fields of a key.
func (r *registers) key(reg uint32, size int) (list []field) {
	c := r.at(reg, uint32(size))
	for at := 0; at < len(c); at += 4 {
		to := min(at+4, len(c))
		word := int(first(reg))/4 + at/4
		if at > 0 && (word >= len(r.begin) || !r.begin[word]) {
			last := &list[len(list)-1]
			last.cells, last.to = c[last.from:to], to
			continue
		}
		list = append(list, field{c[at:to], at, to})
	}
	return list
}
