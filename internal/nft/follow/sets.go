// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// lookup evaluates the lookup of loaded fields in a set. For a verdict map it returns the
// branches that the traffic may take.
func (w *walk) lookup(e nft.Expr, regs *registers) (condition, []branch) {
	set, reg := e.Text(unix.NFTA_LOOKUP_SET), e.Number(unix.NFTA_LOOKUP_SREG)
	members := w.members(set)
	isMap, toVerdict := e.Attr(unix.NFTA_LOOKUP_DREG) != nil, e.Number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT
	kind := regs.at(reg).kind
	switch {
	case members == nil && isMap && toVerdict:
		return condition{}, []branch{{condition: condition{is: Perhaps}, accepts: true}}
	case isMap && !toVerdict:
		*regs = registers{}
		return condition{is: Perhaps, narrow: kind == 'n'}, nil
	case members == nil:
		return condition{is: Perhaps, narrow: kind == 'n', unread: w.table.Name != nft.TableName}, nil
	}
	var key []part
	if len(members) > 0 {
		key = regs.parts(reg, len(members[0].Low))
	}
	if isMap {
		return condition{}, w.choose(key, members)
	}
	return w.anyOf(key, kind, members, e.Number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0), nil
}

// members returns the elements of a set. members returns nil if they cannot be read, and for
// our own table, because doctor compares our sets with the records.
func (w *walk) members(set string) []nft.Member {
	if w.table.Name == nft.TableName {
		return nil
	}
	members, err := w.table.Members(set)
	if err != nil {
		return nil
	}
	return members
}

// choose returns a branch for each element of a verdict map that the traffic may match.
func (w *walk) choose(key []part, members []nft.Member) (chosen []branch) {
	chosen = []branch{}
	for _, m := range members {
		c := w.member(key, m)
		if c.is == Yes {
			return []branch{{verdict: m.Verdict}}
		}
		if c.is == Perhaps {
			chosen = append(chosen, branch{condition: c, verdict: m.Verdict})
		}
	}
	return chosen
}

// anyOf reports whether any element matches the traffic. If inverted is set, it reports
// whether none does. kind is the kind of the key's first field.
func (w *walk) anyOf(key []part, kind byte, members []nft.Member, inverted bool) condition {
	all := condition{is: No, narrow: true, state: kind == 's' && len(key) <= 1}
	var states uint32
	for _, m := range members {
		c := w.member(key, m)
		all.is = min(all.is, c.is)
		all.narrow = all.narrow && (c.is == No || c.narrow)
		all.begins = all.begins || c.is == Perhaps && c.begins
		if len(m.Low) == 4 {
			states |= binary.NativeEndian.Uint32(m.Low)
		}
	}
	all.answers = all.state && !inverted && ofAnswers(binary.NativeEndian.AppendUint32(nil, states))
	if inverted {
		all.is, all.narrow, all.begins = No-all.is, kind == 'n', all.state && states&stateNew == 0
	}
	return all
}

// member reports whether an element matches the traffic in all fields.
func (w *walk) member(key []part, m nft.Member) (all condition) {
	for _, p := range key {
		all = all.and(w.has(p.field, p.of(m)))
	}
	return all
}

// has reports whether one field of an element matches the traffic.
func (w *walk) has(f field, m nft.Member) condition {
	one := bytes.Equal(m.Low, m.High)
	switch {
	case f.kind == 's' && one:
		return condition{is: Perhaps, state: true, answers: ofAnswers(m.Low), begins: ofNew(f.mask, unix.NFT_CMP_EQ, m.Low)}
	case f.kind == 'a':
		return condition{is: w.overlaps(f, m)}
	case one:
		return condition{is: w.compare(f, unix.NFT_CMP_EQ, m.Low), narrow: f.kind == 'n' || f.kind == 'o' && w.isLink(m.Low)}
	}
	return condition{is: Perhaps, narrow: f.kind == 'n'}
}

// overlaps reports whether all, none or some of the containers' addresses are in a range.
func (t Traffic) overlaps(f field, m nft.Member) Answer {
	low, ok1 := netip.AddrFromSlice(m.Low)
	high, ok2 := netip.AddrFromSlice(m.High)
	first := t.Net.Masked().Addr()
	last := prefix.Last(t.Net)
	switch {
	case f.mask != nil || !ok1 || !ok2 || low.BitLen() != first.BitLen():
		return Perhaps
	case high.Less(first) || last.Less(low):
		return No
	case low.Compare(first) <= 0 && last.Compare(high) <= 0:
		return Yes
	}
	return Perhaps
}

// registers holds the fields that a rule has loaded, in words of four bytes. Adjacent fields
// form one key.
type registers [16]field

// word returns the index of a register's first word. Registers 1 to 4 have 16 bytes, the
// others have 4.
func word(n uint32) int {
	if n > unix.NFT_REG_4 {
		return int(n-unix.NFT_REG32_00) % len(registers{})
	}
	return int(4*(n-unix.NFT_REG_1)) % len(registers{})
}

func (r *registers) at(reg uint32) field { return r[word(reg)] }

// load puts a field of size bytes into a register. Size 0 means the usual size of this kind of
// field.
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

// part is one field of a key, with its position in the key.
type part struct {
	field
	from, to int
}

// parts returns the fields of a key. The key begins in register reg and has size bytes.
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

// of returns the part's field of the keys of m.
func (p part) of(m nft.Member) nft.Member {
	if p.to > len(m.Low) || p.to > len(m.High) {
		return nft.Member{}
	}
	return nft.Member{Low: m.Low[p.from:p.to], High: m.High[p.from:p.to]}
}
