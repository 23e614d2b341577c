// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// This file contains what google/nftables v0.3.0 cannot do: read a single element, read an
// element's timeout, and return messages without sending them.

const (
	msgNewSet  = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSET)
	msgNewElem = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM)
)

// errMalformed means that a message does not have the kernel's format.
var errMalformed = errors.New("malformed message")

// decodeElements reads the elements of an NFT_MSG_NEWSETELEM message.
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

// decode reads the attributes of one element.
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

// decodeValue reads the bytes of a key or of data. decodeValue skips a verdict.
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

// commentIn returns the comment in user data, which is a sequence of type, length and value
// (libnftnl include/libnftnl/udata.h). We do not use the library's reader, because it does not
// check the length.
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

// setElement returns the element in the library's type. A timeout of 0 means none.
func (e Element) setElement(timeout time.Duration) nftables.SetElement {
	return nftables.SetElement{Key: e.Key, KeyEnd: e.KeyEnd, Val: e.Data, Comment: e.Comment, Timeout: timeout}
}

// encoder is a library connection without a socket, made with the library's hook for tests, because google/nftables
// v0.3.0, the newest release since February 2025, encodes messages only in order to send them. An encoder of our own
// would save 0.05 ms of an ADD with 20 elements (BenchmarkEncode), but the format of nftables messages would then be
// written in two places.
//
// The library's counter of sets has no lock, so there is one encoder with a lock. To make one takes as long as to encode
// ten elements, because it seeds a random number generator.
var encoder struct {
	sync.Mutex
	lib *nftables.Conn // nil before the first use, and after an error
	out []netlink.Message
}

// encode runs fn on the encoder. encode returns the messages that the library would have sent,
// without begin and end. The library itself can only send. Its Flush asks for an answer to each
// message and for an echo of each rule. So 300 messages overflow the socket's buffer. And if the
// echoes need two datagrams, the library reports an error although the transaction was committed.
// Therefore we send the messages ourselves and ask for one answer (see send).
func encode(fn func(*nftables.Conn) error) ([]netlink.Message, error) {
	encoder.Lock()
	defer encoder.Unlock()
	out, err := runEncoder(fn)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(out) < 2 {
		return nil, nil
	}
	out = out[1 : len(out)-1]
	for i := range out {
		if err := errors.Join(correctCt(out[i]), typed(&out[i])); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func runEncoder(fn func(*nftables.Conn) error) (out []netlink.Message, err error) {
	lib := encoder.lib
	encoder.lib, encoder.out = nil, nil // after an error or a panic, nothing of fn remains
	if lib == nil {
		if lib, err = nftables.New(nftables.AsLasting(), nftables.WithTestDial(keepSent)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(fn(lib), lib.Flush()); err != nil {
		return nil, err
	}
	out, encoder.lib, encoder.out = encoder.out, lib, nil
	return out, nil
}

// keepSent collects the messages that the encoder sends, and answers nothing.
func keepSent(req []netlink.Message) ([]netlink.Message, error) {
	if len(req) > 0 {
		encoder.out = req
	}
	return nil, io.EOF
}

// wrap makes one transaction of the messages, with a begin and an end message. Only the last
// message asks for an answer. The kernel answers each failed message anyway.
func wrap(msgs []netlink.Message) []netlink.Message {
	mark := func(t netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: t, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}, // resource id, big endian
		}
	}
	all := make([]netlink.Message, 0, len(msgs)+2)
	all = append(all, mark(unix.NFNL_MSG_BATCH_BEGIN))
	for i, m := range msgs {
		flags := m.Header.Flags &^ (netlink.Acknowledge | netlink.Echo)
		if i == len(msgs)-1 {
			flags |= netlink.Acknowledge
		}
		all = append(all, netlink.Message{Header: netlink.Header{Type: m.Header.Type, Flags: flags}, Data: m.Data})
	}
	return append(all, mark(unix.NFNL_MSG_BATCH_END))
}

// describe names a message for an error text, such as "add element to ports4".
func describe(m netlink.Message) string {
	names := [...]string{unix.NFT_MSG_NEWTABLE: "add table", unix.NFT_MSG_DELTABLE: "delete table",
		unix.NFT_MSG_NEWCHAIN: "add chain", unix.NFT_MSG_DELCHAIN: "delete chain",
		unix.NFT_MSG_NEWRULE: "add rule to", unix.NFT_MSG_DELRULE: "delete rule from",
		unix.NFT_MSG_NEWSET: "add set", unix.NFT_MSG_DELSET: "delete set",
		unix.NFT_MSG_NEWSETELEM: "add element to", unix.NFT_MSG_DELSETELEM: "delete element from",
		nftables.NFT_MSG_NEWFLOWTABLE: "add flowtable", nftables.NFT_MSG_DELFLOWTABLE: "delete flowtable"}
	what := fmt.Sprintf("message %d", m.Header.Type)
	if n := int(m.Header.Type) & 0xff; n < len(names) && names[n] != "" {
		what = names[n]
	}
	if len(m.Data) < 4 {
		return what
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return what
	}
	for ad.Next() {
		if t := ad.Type(); t == 1 || t == 2 { // attribute 1 names the table in all these messages; attribute 2 names the set, the chain or the rule's chain
			what += " " + ad.String()
		}
	}
	return what
}
