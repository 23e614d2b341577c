// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/services"
)

// found is what the kernel has.
type found struct {
	state  nft.ServicesState
	usable bool // the table is ours, and all of its elements can be read
	table  services.Table
	sets   []string // those that a layout knows
}

// read returns what the kernel has. A table of another layout, or with elements that no program has, is made anew.
func read(fw *nft.Conn) (*found, error) {
	state, err := fw.ReadServices()
	f := &found{state: state, usable: state.Ours, table: make(services.Table)}
	if err != nil || !state.Ours {
		return f, err
	}
	for _, name := range state.Sets {
		if _, err := nft.LayoutOfServices(name); err != nil {
			continue // not ours, and removed
		}
		f.sets = append(f.sets, name)
		like, ok := services.SetNamed(name)
		if !ok {
			continue // the revision, and what clients remember
		}
		if ok, err := f.readSet(fw, name, like); err != nil || !ok {
			f.usable, f.table = false, make(services.Table)
			return f, err
		}
	}
	return f, nil
}

// readSet reads the elements of a set. like has what its name says.
func (f *found) readSet(fw *nft.Conn, name string, like services.Element) (ok bool, err error) {
	ok = true
	var first, after []netip.Addr
	ranges := ofRanges(like.Set)
	err = fw.EachElement(name, func(key, data []byte, end bool) {
		if ranges {
			a, valid := netip.AddrFromSlice(key)
			if ok = ok && valid; end {
				after = append(after, a)
			} else {
				first = append(first, a)
			}
			return
		}
		e, valid := elementOf(key, like)
		ok = ok && valid
		r := reader{data, true}
		if len(data) > 0 {
			e.Endpoint = netip.AddrPortFrom(r.addr(like.IPv6), r.port())
		}
		ok = ok && r.whole()
		to := e.Endpoint
		e.Endpoint = netip.AddrPort{}
		f.table[e] = to
	})
	for _, r := range prefixesOf(first, after) {
		ok = ok && r.IsValid()
		like.Range = r
		f.table[like] = netip.AddrPort{}
	}
	return ok, err
}

// ofRanges reports whether the elements of a kind of sets are ranges.
func ofRanges(s services.Set) bool {
	return s == services.Pods || s == services.Keeping || s == services.CIDR
}

// prefixesOf joins the beginnings of ranges with the addresses after their ends. What is no prefix is not valid.
func prefixesOf(first, after []netip.Addr) (list []netip.Prefix) {
	slices.SortFunc(first, netip.Addr.Compare)
	slices.SortFunc(after, netip.Addr.Compare)
	for _, a := range first {
		var end netip.Addr
		if i := slices.IndexFunc(after, func(o netip.Addr) bool { return a.Less(o) }); i >= 0 {
			end = after[i]
		}
		var found netip.Prefix
		for bits := range a.BitLen() + 1 {
			if r := netip.PrefixFrom(a, bits); r.Masked().Addr() == a && prefix.Last(r).Next() == end {
				found = r
			}
		}
		list = append(list, found)
	}
	return list
}

// elementOf reads a key.
func elementOf(key []byte, e services.Element) (services.Element, bool) {
	r := reader{key, true}
	switch e.Set {
	case services.Hairpin:
		e.Frontend.Addr = r.addr(e.IPv6)
		return e, r.addr(e.IPv6) == e.Frontend.Addr && r.whole()
	case services.ClusterIP, services.VIP, services.NodeAddress:
		e.Frontend.Addr = r.addr(e.IPv6)
		return e, r.whole()
	}
	if e.NodePort {
		e.Frontend.Addr = unspecified(e.IPv6)
	} else {
		e.Frontend.Addr = r.addr(e.IPv6)
	}
	e.Frontend.Protocol, e.Frontend.Port = l4.Protocol(r.next(4)[0]), r.port()
	switch e.Set {
	case services.Many, services.OutsideMany:
		e.Slot = uint16(binary.NativeEndian.Uint32(r.next(4)))
	case services.Allowed:
		e.Range = netip.PrefixFrom(r.addr(e.IPv6), int(e.Size))
	}
	return e, r.whole()
}

func unspecified(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// reader takes fields from the kernel's bytes.
type reader struct {
	rest []byte
	ok   bool
}

// next returns the next bytes, or zeros if there are not enough.
func (r *reader) next(n int) []byte {
	if len(r.rest) < n {
		r.ok, r.rest = false, nil
		return make([]byte, n)
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16([16]byte(r.next(16)))
	}
	return netip.AddrFrom4([4]byte(r.next(4)))
}

func (r *reader) port() uint16 { return binary.BigEndian.Uint16(r.next(4)) }

// whole reports whether there were enough bytes, and no others.
func (r *reader) whole() bool { return r.ok && len(r.rest) == 0 }
