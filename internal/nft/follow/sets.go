// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// lookup asks a set for a field: whether it has the traffic's, or what a verdict map
// does with it.
func (w *walk) lookup(e nft.Expr, regs map[uint32]field) (condition, []branch) {
	f := regs[be32(e.Attr(unix.NFTA_LOOKUP_SREG))]
	members := w.members(unix.ByteSliceToString(e.Attr(unix.NFTA_LOOKUP_SET)))
	dreg := e.Attr(unix.NFTA_LOOKUP_DREG)
	switch {
	case members == nil && dreg != nil && be32(dreg) == unix.NFT_REG_VERDICT:
		return condition{}, []branch{{condition: condition{is: Perhaps}, accepts: true}}
	case members == nil || dreg != nil && be32(dreg) != unix.NFT_REG_VERDICT:
		return condition{is: Perhaps, narrow: f.kind == 'n'}, nil
	case dreg != nil:
		return condition{}, w.choose(f, members)
	}
	return w.anyOf(f, members, be32(e.Attr(unix.NFTA_LOOKUP_FLAGS))&unix.NFT_LOOKUP_F_INV != 0), nil
}

// members are those of a set, nil where they decide nothing. Our own sets decide
// nothing here: doctor compares them with the records.
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

// choose makes a branch of each element of a verdict map that the traffic may have.
func (w *walk) choose(f field, members []nft.Member) (chosen []branch) {
	chosen = []branch{}
	for _, m := range members {
		c := w.member(f, m)
		if c.is == Yes {
			return []branch{{verdict: m.Verdict}}
		}
		if c.is == Perhaps {
			chosen = append(chosen, branch{condition: c, verdict: m.Verdict})
		}
	}
	return chosen
}

// anyOf says whether any element has the traffic, or with inverted none.
func (w *walk) anyOf(f field, members []nft.Member, inverted bool) condition {
	all := condition{is: No, narrow: true, state: f.kind == 's'}
	var states uint32
	for _, m := range members {
		c := w.member(f, m)
		all.is = min(all.is, c.is)
		all.narrow = all.narrow && (c.is == No || c.narrow)
		if len(m.Low) == 4 {
			states |= binary.NativeEndian.Uint32(m.Low)
		}
	}
	all.answers = all.state && !inverted && ofAnswers(binary.NativeEndian.AppendUint32(nil, states))
	if inverted {
		all.is, all.narrow = No-all.is, f.kind == 'n'
	}
	return all
}

// member says whether an element has the traffic.
func (w *walk) member(f field, m nft.Member) condition {
	one := bytes.Equal(m.Low, m.High)
	switch {
	case f.kind == 's' && one:
		return condition{is: Perhaps, state: true, answers: ofAnswers(m.Low)}
	case f.kind == 'a':
		return condition{is: w.overlaps(f, m)}
	case one:
		return condition{is: w.compare(f, unix.NFT_CMP_EQ, m.Low), narrow: f.kind == 'n' || f.kind == 'o' && w.isLink(m.Low)}
	}
	return condition{is: Perhaps, narrow: f.kind == 'n'}
}

// overlaps says whether the containers' addresses are in a range: all, some or none.
func (t Traffic) overlaps(f field, m nft.Member) Answer {
	low, ok1 := netip.AddrFromSlice(m.Low)
	high, ok2 := netip.AddrFromSlice(m.High)
	first := t.Net.Masked().Addr()
	last, _ := netip.AddrFromSlice(nft.LastAddr(t.Net))
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
