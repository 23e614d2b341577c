// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conntrack lists and deletes connection tracking entries of the current network
// namespace, over nfnetlink with mdlayher/netlink. As long as packets keep coming, such an entry
// decides where the packets of a UDP flow go. An entry may be older than a published port, or
// belong to a removed container. Then it sends the client's packets to the wrong place
// (plugins#123).
//
// vishvananda/netlink has the same calls, but lists the whole table, which has millions of
// entries on a busy node. Here the kernel filters (CTA_FILTER, Linux >= 5.8).
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is an nfnetlink socket. Only one goroutine may use it at a time.
type Conn struct{ nl *netlink.Conn }

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nfnetlink for conntrack: %w", err)
	}
	return &Conn{nl}, nil
}

// Close closes the socket. After an nftables transaction that deleted something, closing any
// nfnetlink socket of the namespace waits (RCU). So callers close it last.
func (c *Conn) Close() error { return c.nl.Close() }

// These are message types of subsystem ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	msgNew netlink.HeaderType = unix.NFNL_SUBSYS_CTNETLINK<<8 + iota
	msgGet
	msgDelete
)

// List returns the flows that match f. If the kernel cannot filter, it sends all entries, and
// List drops those that do not match.
func (c *Conn) List(f Filter) ([]Flow, error) {
	req, err := f.request()
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return c.list(req, f.Match)
}

// fromRequest returns the request for a dump of the flows in which one tuple has this source.
func fromRequest(tuple uint16, a netip.Addr) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Nested(tuple, func(te *netlink.AttributeEncoder) error {
		te.Nested(ctaTupleIP, func(ie *netlink.AttributeEncoder) error {
			ie.Bytes(ctaIPv4Src, a.AsSlice())
			return nil
		})
		return nil
	})
	var orig, reply uint32
	if tuple == ctaTupleOrig {
		orig = flagIPSrc
	} else {
		reply = flagIPSrc
	}
	compare(ae, orig, reply)
	b, err := ae.Encode()
	return dump(unix.AF_INET, b), err
}

// compare says which parts of its two tuples the kernel compares.
func compare(ae *netlink.AttributeEncoder, orig, reply uint32) {
	ae.Nested(ctaFilter, func(fe *netlink.AttributeEncoder) error {
		fe.Uint32(ctaFilterOrigFlags, orig)
		fe.Uint32(ctaFilterReplyFlags, reply)
		return nil
	})
}

// dump returns a request for many entries.
func dump(family uint8, attrs []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: msgGet, Flags: netlink.Request | netlink.Dump}, Data: append(header(family), attrs...)}
}

func (c *Conn) list(req netlink.Message, wanted func(Flow) bool) ([]Flow, error) {
	msgs, err := c.nl.Execute(req)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	var flows []Flow
	for _, m := range msgs {
		if m.Header.Type != msgNew {
			continue
		}
		flow, err := parse(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list conntrack entries: %w", err)
		}
		if wanted(flow) {
			flows = append(flows, flow)
		}
	}
	return flows, nil
}

// Delete deletes exactly this flow. Its tuple, its zone and the kernel's id identify it. Delete
// accepts that the flow has already ended.
func (c *Conn) Delete(f Flow) error {
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.NLA_F_NESTED|ctaTupleOrig, f.tuple)
	if f.zone != nil {
		ae.Bytes(ctaZone, f.zone)
	}
	if f.id != nil {
		ae.Bytes(ctaID, f.id)
	}
	b, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("delete conntrack entry %s: %w", f, err)
	}
	_, err = c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: msgDelete, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header(f.family()), b...),
	})
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("delete conntrack entry %s: %w", f, err)
	}
	return nil
}

// End deletes flows. The namespace is that of the calling thread.
func End(flows []Flow) error {
	if len(flows) == 0 {
		return nil
	}
	c, err := Dial()
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing is lost
	var errs []error
	for _, f := range flows {
		errs = append(errs, c.Delete(f))
	}
	return errors.Join(errs...)
}

// header returns a struct nfgenmsg: family, version, resource id.
func header(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// These are attributes from linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

// These are bits of CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS. They name the fields of
// the tuple to compare (net/netfilter/nf_internals.h).
const (
	flagIPSrc     = 1 << 0
	flagIPDst     = 1 << 1
	flagProtoNum  = 1 << 3
	flagProtoSrc  = 1 << 4
	flagProtoDst  = 1 << 5
	ipv4Len       = 4
	ipv6Len       = 16
	nfgenmsgBytes = 4
)

// Tuple describes one direction of a flow.
type Tuple struct {
	Protocol uint8 // IP protocol number
	Src, Dst netip.AddrPort
}

// Flow is one entry. It has the tuple of the first packet and the tuple of an answer. Without
// NAT, the answer's tuple is the first packet's with both ends swapped.
type Flow struct {
	Orig, Reply Tuple

	tuple, zone, id []byte // in the form that the kernel sent
}

// String returns the flow in the format of conntrack(8).
func (f Flow) String() string {
	return fmt.Sprintf("proto %d %s -> %s (answers come from %s)", f.Orig.Protocol, f.Orig.Src, f.Orig.Dst, f.Reply.Src)
}

func (f Flow) family() uint8 { return familyOf(f.Orig.Dst.Addr()) }

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Filter selects flows. A field with the zero value matches everything; port 0 does too.
type Filter struct {
	IPv6         bool
	Protocol     uint8      // required
	OrigDst      netip.Addr // destination that the client used
	OrigDstPort  uint16
	ReplySrc     netip.Addr // address that sends the answers
	ReplySrcPort uint16
}

// Match reports whether f selects a flow.
func (f Filter) Match(flow Flow) bool {
	return flow.Orig.Protocol == f.Protocol &&
		flow.Orig.Dst.Addr().Is6() == f.IPv6 &&
		matches(f.OrigDst, f.OrigDstPort, flow.Orig.Dst) &&
		matches(f.ReplySrc, f.ReplySrcPort, flow.Reply.Src)
}

func matches(a netip.Addr, port uint16, have netip.AddrPort) bool {
	return (!a.IsValid() || a == have.Addr()) && (port == 0 || port == have.Port())
}

// request returns the request for a dump, with the kernel's filter.
func (f Filter) request() (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	orig := f.tuple(ae, ctaTupleOrig, side{f.OrigDst, f.OrigDstPort, ctaIPv4Dst, flagIPDst, ctaProtoDstPort, flagProtoDst})
	reply := f.tuple(ae, ctaTupleReply, side{f.ReplySrc, f.ReplySrcPort, ctaIPv4Src, flagIPSrc, ctaProtoSrcPort, flagProtoSrc})
	compare(ae, orig, reply)
	b, err := ae.Encode()
	family := uint8(unix.AF_INET)
	if f.IPv6 {
		family = unix.AF_INET6
	}
	return dump(family, b), err
}

// side is one end of a tuple. side has the address, the port, and the numbers of their
// attributes and flags.
type side struct {
	addr     netip.Addr
	port     uint16
	addrType uint16 // attribute of an IPv4 address
	addrFlag uint32
	portType uint16
	portFlag uint32
}

// tuple encodes the fields that are set and returns their flags. It leaves IPv6 addresses to
// Match, because the kernel compares them the wrong way round: it drops the entries that have the
// address (ctnetlink_filter_match_tuple, Linux 5.8 to at least 6.18).
func (f Filter) tuple(ae *netlink.AttributeEncoder, t uint16, s side) (flags uint32) {
	flags = flagProtoNum
	ae.Nested(t, func(te *netlink.AttributeEncoder) error {
		if s.addr.Is4() {
			flags |= s.addrFlag
			te.Nested(ctaTupleIP, func(ie *netlink.AttributeEncoder) error {
				ie.Bytes(s.addrType, s.addr.AsSlice())
				return nil
			})
		}
		te.Nested(ctaTupleProto, func(pe *netlink.AttributeEncoder) error {
			pe.Uint8(ctaProtoNum, f.Protocol)
			if s.port != 0 {
				flags |= s.portFlag
				pe.Bytes(s.portType, binary.BigEndian.AppendUint16(nil, s.port))
			}
			return nil
		})
		return nil
	})
	return flags
}

// errMalformed means that a message does not have the kernel's format.
var errMalformed = errors.New("malformed message")

// parse reads the payload of an IPCTNL_MSG_CT_NEW message.
func parse(data []byte) (Flow, error) {
	var f Flow
	if len(data) < nfgenmsgBytes {
		return f, fmt.Errorf("%d bytes: %w", len(data), errMalformed)
	}
	ad, err := netlink.NewAttributeDecoder(data[nfgenmsgBytes:])
	if err != nil {
		return f, err
	}
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			f.tuple = ad.Bytes()
			ad.Nested(f.Orig.decode)
		case ctaTupleReply:
			ad.Nested(f.Reply.decode)
		case ctaID:
			f.id = ad.Bytes()
		case ctaZone:
			f.zone = ad.Bytes()
		}
	}
	if err := ad.Err(); err != nil {
		return f, err
	}
	if !f.Orig.Dst.IsValid() || !f.Reply.Src.IsValid() {
		return f, fmt.Errorf("entry without addresses: %w", errMalformed)
	}
	return f, nil
}

// decode reads CTA_TUPLE_ORIG or CTA_TUPLE_REPLY.
func (t *Tuple) decode(ad *netlink.AttributeDecoder) error {
	var src, dst netip.Addr
	var sport, dport uint16
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleIP:
			ad.Nested(func(in *netlink.AttributeDecoder) error {
				for in.Next() {
					switch in.Type() {
					case ctaIPv4Src, ctaIPv6Src:
						src = addr(in.Bytes())
					case ctaIPv4Dst, ctaIPv6Dst:
						dst = addr(in.Bytes())
					}
				}
				return nil
			})
		case ctaTupleProto:
			ad.Nested(func(in *netlink.AttributeDecoder) error {
				in.ByteOrder = binary.BigEndian
				for in.Next() {
					switch in.Type() {
					case ctaProtoNum:
						t.Protocol = in.Uint8()
					case ctaProtoSrcPort:
						sport = in.Uint16()
					case ctaProtoDstPort:
						dport = in.Uint16()
					}
				}
				return nil
			})
		}
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return nil
}

// addr converts 4 or 16 bytes to an address. For any other length it returns the zero Addr.
func addr(b []byte) netip.Addr {
	if len(b) != ipv4Len && len(b) != ipv6Len {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
