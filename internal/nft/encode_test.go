// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// BenchmarkEncode measures what the library's encoder costs for the elements of an attachment. "first" is the first use
// in a process, as in most plugins' processes. "by hand" makes only the attributes, so it shows the least time that an
// encoder of our own would need.
func BenchmarkEncode(b *testing.B) {
	elems := attachment()
	byLibrary := func() (int, error) {
		msgs, err := encode(func(enc *nftables.Conn) error { return bySet(elems, 0, enc.SetAddElements) })
		return len(msgs), err
	}
	for _, c := range []struct {
		name string
		do   func() (int, error)
	}{
		{"first", func() (int, error) { encoder.lib = nil; return byLibrary() }},
		{"again", byLibrary},
		{"by hand", func() (int, error) { return byHand(elems) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n, err := c.do(); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// byHand encodes each element as a message, and returns how many there are.
func byHand(elems []Element) (n int, err error) {
	for _, e := range elems {
		ae := netlink.NewAttributeEncoder()
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, "patchbay")
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, e.Set)
		ae.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
			list.Nested(1, func(one *netlink.AttributeEncoder) error {
				for typ, value := range map[uint16][]byte{unix.NFTA_SET_ELEM_KEY: e.Key, nftables.NFTA_SET_ELEM_KEY_END: e.KeyEnd, unix.NFTA_SET_ELEM_DATA: e.Data} {
					if len(value) > 0 {
						one.Nested(typ, func(of *netlink.AttributeEncoder) error { of.Bytes(unix.NFTA_DATA_VALUE, value); return nil })
					}
				}
				one.Bytes(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment))
				return nil
			})
			return nil
		})
		if _, err := ae.Encode(); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
