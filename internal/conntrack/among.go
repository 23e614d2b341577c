// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
)

// few is the largest number of IPv4 addresses for which Among asks about each one. The kernel then sends only
// the flows of that address, but reads its table twice for it.
const few = 2

// Among returns those wanted flows that one of the addresses began, or that one answers. For a few IPv4
// addresses the kernel sends only their flows. Otherwise, and for IPv6 always (see Filter.tuple), it sends all
// flows of the family, and Among decodes only those of the addresses. Only the wanted flows are kept in memory,
// because a busy node has hundreds of thousands of others. The namespace is that of the calling thread.
func Among(addrs map[netip.Addr]bool, wanted func(Flow) bool) ([]Flow, error) {
	requests, err := requestsFor(addrs)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	flows, err := ask(requests, func(data []byte) bool {
		return addrs[source(data, ctaTupleOrig)] || addrs[source(data, ctaTupleReply)]
	}, wanted)
	if len(requests) > 1 {
		flows = once(flows)
	}
	return flows, err
}

func requestsFor(addrs map[netip.Addr]bool) (list []netlink.Message, err error) {
	var four []netip.Addr
	for a := range addrs {
		if a.Is4() {
			four = append(four, a)
		}
	}
	if len(four) < len(addrs) {
		list = append(list, dump(unix.AF_INET6, nil))
	}
	if len(four) > few {
		return append(list, dump(unix.AF_INET, nil)), nil
	}
	for _, a := range four {
		for _, tuple := range []uint16{ctaTupleOrig, ctaTupleReply} {
			req, err := fromRequest(tuple, a)
			if err != nil {
				return nil, err
			}
			list = append(list, req)
		}
	}
	return list, nil
}

// once removes duplicates: two requests find a flow between two of the addresses.
func once(flows []Flow) []Flow {
	seen := make(map[string]bool, len(flows))
	return slices.DeleteFunc(flows, func(f Flow) bool {
		key := string(f.tuple) + string(f.zone)
		was := seen[key]
		seen[key] = true
		return was
	})
}

// ask sends requests for dumps, one after the other. maybe checks the bytes of an entry, which is much faster
// than decoding it.
func ask(requests []netlink.Message, maybe func([]byte) bool, wanted func(Flow) bool) (flows []Flow, err error) {
	s, err := rawnl.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	defer s.Close() //nolint:errcheck // nothing was written
	add := func(data []byte) error {
		if !maybe(data) {
			return nil
		}
		flow, err := parse(data)
		if err == nil && wanted(flow) {
			flows = append(flows, flow)
		}
		return err
	}
	for _, req := range requests {
		if err := each(s, req, add); err != nil {
			return nil, fmt.Errorf("list conntrack entries: %w", err)
		}
	}
	return flows, nil
}

// each calls do with each entry of a dump.
func each(s rawnl.Socket, req netlink.Message, do func([]byte) error) error {
	err := begin(s, req)
	buf := make([]byte, longestPart)
	for err == nil {
		var msgs []syscall.NetlinkMessage
		msgs, err = s.Receive(buf)
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return errnoOf(m.Data)
			case uint16(msgNew):
				if err := do(m.Data); err != nil {
					return err
				}
			}
		}
	}
	return err
}

// longestPart has room, in bytes, for a datagram of a dump: the kernel sends at most 32 KB at once.
const longestPart = 1 << 16

func begin(s rawnl.Socket, req netlink.Message) error {
	req.Header.Length, req.Header.Sequence = uint32(unix.NLMSG_HDRLEN+len(req.Data)), 1
	text, err := req.MarshalBinary()
	if err != nil {
		return err
	}
	return s.Send(text)
}

// source returns the source address of one tuple of an entry.
func source(data []byte, tuple uint16) netip.Addr {
	if len(data) < nfgenmsgBytes {
		return netip.Addr{}
	}
	ip := attribute(attribute(data[nfgenmsgBytes:], tuple), ctaTupleIP)
	if four := attribute(ip, ctaIPv4Src); four != nil {
		return addr(four)
	}
	return addr(attribute(ip, ctaIPv6Src))
}

// typeMask is the part of an attribute's type without flags, such as NLA_F_NESTED.
const typeMask = 0x3fff

// attribute returns the value of the first attribute of a type, or nil.
func attribute(b []byte, kind uint16) []byte {
	for len(b) > 0 {
		var have uint16
		var value []byte
		if have, value, b = next(b); have == kind && value != nil {
			return value
		}
	}
	return nil
}

// next returns the first of a list of attributes, and the rest of the list. Of what is no list, both are nil.
func next(b []byte) (kind uint16, value, rest []byte) {
	if len(b) < unix.NLA_HDRLEN {
		return 0, nil, nil
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.NLA_HDRLEN || size > len(b) {
		return 0, nil, nil
	}
	return binary.NativeEndian.Uint16(b[2:]) & typeMask, b[unix.NLA_HDRLEN:size], b[min((size+3)&^3, len(b)):]
}

// errnoOf returns the error of a message that ends a dump.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}
