// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// encoding guards the library's counter of sets, which all its connections share without a
// lock.
var encoding sync.Mutex

// encode runs fn on a connection of the library without a socket and returns the messages
// that it would have sent, without begin and end. The library can only send, and its Flush
// asks for an answer to each message and for an echo of each rule: 300 messages overflow
// the socket's buffer, and the library takes two datagrams of echoes for an error of a
// transaction that was committed. We send the same messages and ask for one answer (see
// send).
func encode(fn func(*nftables.Conn) error) ([]netlink.Message, error) {
	encoding.Lock()
	defer encoding.Unlock()
	var out []netlink.Message
	record := func(req []netlink.Message) ([]netlink.Message, error) {
		if len(req) > 0 {
			out = req
		}
		return nil, io.EOF // no answer
	}
	enc, err := nftables.New(nftables.WithTestDial(record))
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := errors.Join(fn(enc), enc.Flush()); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(out) < 2 {
		return nil, nil
	}
	out = out[1 : len(out)-1]
	for _, m := range out {
		if err := oneByteDirection(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// wrap makes messages one transaction: begin, the messages, end. Only the last message asks
// for an answer; the kernel answers each message that fails anyway.
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

// describe names a message in an error: "add element to ports4".
func describe(m netlink.Message) string {
	names := [...]string{unix.NFT_MSG_NEWTABLE: "add table", unix.NFT_MSG_DELTABLE: "delete table",
		unix.NFT_MSG_NEWCHAIN: "add chain", unix.NFT_MSG_DELCHAIN: "delete chain",
		unix.NFT_MSG_NEWRULE: "add rule to", unix.NFT_MSG_DELRULE: "delete rule from",
		unix.NFT_MSG_NEWSET: "add set", unix.NFT_MSG_DELSET: "delete set",
		unix.NFT_MSG_NEWSETELEM: "add element to", unix.NFT_MSG_DELSETELEM: "delete element from"}
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
		if t := ad.Type(); t == 1 || t == 2 { // table and set, or chain, or a rule's chain, in each of these messages
			what += " " + ad.String()
		}
	}
	return what
}
