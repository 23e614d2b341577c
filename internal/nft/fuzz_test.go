// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

// elementMessage is the kernel's answer, made by the library's encoder.
func elementMessage(f testing.TB) []byte {
	msgs, err := encode(func(enc *nftables.Conn) error {
		return bySet(attachment()[1:2], expireAfter, enc.SetAddElements)
	})
	if err != nil || len(msgs) != 1 {
		f.Fatal(msgs, err)
	}
	return msgs[0].Data
}

func TestDecodeElement(t *testing.T) {
	got, err := decodeElements(netlink.Message{Header: netlink.Header{Type: msgNewElem}, Data: elementMessage(t)})
	if err != nil || len(got) != 1 || !got[0].same(attachment()[1]) || !got[0].leaving {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzDecodeElements(f *testing.F) {
	f.Add(elementMessage(f))
	f.Add([]byte{1, 0, 0, 0, 8, 0, 3, 0x80, 4, 0, 1, 0x80})
	f.Fuzz(func(_ *testing.T, b []byte) {
		elems, err := decodeElements(netlink.Message{Header: netlink.Header{Type: msgNewElem}, Data: b})
		if err != nil {
			return
		}
		for _, e := range elems {
			_ = e.String()
			_, _ = OwnerOf(e.Comment)
			_ = e.Covers(e)
		}
	})
}

func FuzzDecodeRule(f *testing.F) {
	msgs, err := encode(func(enc *nftables.Conn) error { return layoutOf(nftables.TableFamilyINet).create(enc, 1) })
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range msgs {
		if m.Header.Type == msgNewRule {
			f.Add(m.Data)
		}
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		r, err := decodeRule(netlink.Message{Header: netlink.Header{Type: msgNewRule}, Data: b}, (*Rule).decodeExprs)
		if err != nil {
			return
		}
		_, _, _ = r.Verdict()
		_, _ = r.Comment(), r.String()
		sameRule(1, r.Exprs, forwardRules()[0].exprs)
	})
}

func FuzzComment(f *testing.F) {
	f.Add([]byte{0, 2, 'x', 0})
	f.Add([]byte{0, 200, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c := commentIn(b, 0); len(c) > 255 {
			t.Errorf("%d bytes", len(c))
		}
		if c := CleanComment(string(b)); len(c) > MaxComment {
			t.Errorf("%d bytes", len(c))
		}
	})
}
