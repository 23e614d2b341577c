// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// This file does what google/nftables v0.3.0 lacks: fetch one element, read an element's
// timeout, and return its messages instead of sending them.

const (
	msgNewSet  = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSET)
	msgNewElem = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM)
)

// errMalformed is the error for messages that do not have the kernel's form.
var errMalformed = errors.New("malformed message")

// decodeElements reads the elements of one NFT_MSG_NEWSETELEM message.
func decodeElements(m netlink.Message) ([]Element, error) {
	if m.Header.Type != msgNewElem || len(m.Data) < 4 {
		return nil, fmt.Errorf("decode elements: type %v, %d bytes: %w", m.Header.Type, len(m.Data), errMalformed)
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return nil, fmt.Errorf("decode elements: %w", err)
	}
	var set string
	var elems []Element
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_LIST_SET:
			set = ad.String()
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					var e Element
					list.Nested(e.decode)
					elems = append(elems, e)
				}
				return nil
			})
		}
	}
	if err := ad.Err(); err != nil {
		return nil, fmt.Errorf("decode elements: %w", err)
	}
	for i := range elems {
		elems[i].Set = set
	}
	return elems, nil
}

// decode reads one element's attributes.
func (e *Element) decode(ad *netlink.AttributeDecoder) error {
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(decodeValue(&e.Key))
		case nftables.NFTA_SET_ELEM_KEY_END:
			ad.Nested(decodeValue(&e.KeyEnd))
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(decodeValue(&e.Data))
		case unix.NFTA_SET_ELEM_TIMEOUT:
			timeout := ad.Uint64() // in milliseconds
			e.timed = timeout != 0
			e.leaving = e.timed && timeout <= uint64(expiryDeadline/time.Millisecond)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = commentIn(ad.Bytes(), userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
	}
	return nil
}

// decodeValue reads the bytes of a key or of data; a verdict is left out.
func decodeValue(to *Hex) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == unix.NFTA_DATA_VALUE {
				*to = ad.Bytes()
			}
		}
		return nil
	}
}

// commentIn finds the comment in user data, a sequence of type, length and value (libnftnl
// include/libnftnl/udata.h). The library's reader trusts the length.
func commentIn(b []byte, typ userdata.Type) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		value := b[2 : 2+int(b[1])]
		if userdata.Type(b[0]) == typ {
			if n := len(value); n > 0 && value[n-1] == 0 {
				value = value[:n-1]
			}
			return string(value)
		}
		b = b[2+len(value):]
	}
	return ""
}

// setElement is the library's form of an element; a timeout of 0 is none.
func (e Element) setElement(timeout time.Duration) nftables.SetElement {
	return nftables.SetElement{Key: e.Key, KeyEnd: e.KeyEnd, Val: e.Data, Comment: e.Comment, Timeout: timeout}
}
