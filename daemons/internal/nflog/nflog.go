// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nflog reads what the kernel's rules tell to a group of NFLOG about packets. Messages have numbers, so it is known
// how many were lost on the way.
package nflog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// These are numbers of include/uapi/linux/netfilter/nfnetlink_log.h.
const (
	msgPacket = unix.NFNL_SUBSYS_ULOG << 8
	msgConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	cfgCmd     = 1
	cfgMode    = 2
	cfgTimeout = 4
	cfgThresh  = 5
	cfgFlags   = 6

	cmdBind    = 1
	copyPacket = 2
	flagSeq    = 1

	attrInDev   = 4
	attrPayload = 9
	attrPrefix  = 10
	attrSeq     = 12
)

const (
	// The kernel sends messages together: so many, or after so many hundredths of a second.
	together = 32
	waits    = 10

	// copied has an IPv6 header and the ports. No more of a packet ever leaves the kernel.
	copied = 64

	// Late is longer than a message is on its way: the kernel keeps it for waits hundredths of a second.
	Late = 3 * waits * 10 * time.Millisecond

	// socketBuffer has room, in bytes, for what comes while the agent is busy.
	socketBuffer = 1 << 20
)

// Packet is what the kernel told about a packet.
type Packet struct {
	Time     time.Time
	Prefix   string // of the rule
	Link     int    // index of the link from which the packet came; 0: of none
	From, To netip.Addr
	Protocol uint8
	Port     uint16 // of the destination, or the type of ICMP
}

// Listener gets the packets of one group. Only one process can listen to a group.
type Listener struct {
	conn  *netlink.Conn
	early []netlink.Message
	last  uint32
	began bool // a number was seen
}

// Listen binds a group of NFLOG in the network namespace of the calling thread. The error wraps unix.EPERM if another
// process has the group.
func Listen(group uint16) (*Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("listen to group %d of NFLOG: %w", group, err)
	}
	_ = conn.SetReadBuffer(socketBuffer) // else more is lost, which is counted
	l := &Listener{conn: conn}
	if err := l.configure(group); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to group %d of NFLOG: %w", group, err), conn.Close())
	}
	return l, nil
}

func (l *Listener) configure(group uint16) error {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for _, a := range []netlink.Attribute{
		{Type: cfgCmd, Data: []byte{cmdBind}},
		{Type: cfgMode, Data: append(number(copied), copyPacket, 0)},
		{Type: cfgThresh, Data: number(together)},
		{Type: cfgTimeout, Data: number(waits)},
		{Type: cfgFlags, Data: binary.BigEndian.AppendUint16(nil, flagSeq)},
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err != nil {
			return err
		}
		head := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)
		if err := l.exchange(netlink.Message{Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: append(head, data...)}); err != nil {
			return err
		}
	}
	return nil
}

// exchange sends a message, and waits for its answer. Packets may come before it, from the binding on.
func (l *Listener) exchange(m netlink.Message) error {
	sent, err := l.conn.Send(m)
	if err != nil {
		return err
	}
	for {
		msgs, err := l.conn.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		for _, m := range msgs {
			if m.Header.Type == netlink.Error && m.Header.Sequence == sent.Header.Sequence {
				return nil
			}
			l.early = append(l.early, m)
		}
	}
}

// Close ends Receive, and gives the group back.
func (l *Listener) Close() error { return l.conn.Close() }

// SetReadDeadline ends a Receive at a time, with an error that wraps os.ErrDeadlineExceeded.
func (l *Listener) SetReadDeadline(at time.Time) error { return l.conn.SetReadDeadline(at) }

// Receive waits for packets. lost is how many the kernel told and could not deliver before these.
func (l *Listener) Receive() (list []Packet, lost uint64, err error) {
	msgs := l.early
	if l.early = nil; msgs == nil {
		msgs, err = l.conn.Receive()
	}
	if errors.Is(err, unix.ENOBUFS) {
		return nil, 0, nil // the next number tells how many
	}
	now := time.Now()
	for _, m := range msgs {
		if m.Header.Type != msgPacket || len(m.Data) < 4 {
			continue
		}
		p, number, err := decode(m.Data[4:])
		if err != nil {
			return list, lost, err
		}
		lost += l.gap(number)
		p.Time = now
		list = append(list, p)
	}
	return list, lost, err
}

// gap returns how many numbers are missing before this one. The kernel numbers what it tells to a group from 0 on.
func (l *Listener) gap(number uint32) uint64 {
	missing := number - l.last - 1
	if !l.began {
		missing = number
	}
	l.last, l.began = number, true
	return uint64(missing)
}

// decode reads a message's attributes.
func decode(b []byte) (p Packet, number uint32, err error) {
	attrs, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return p, 0, fmt.Errorf("read a message of NFLOG: %w", err)
	}
	for _, a := range attrs {
		switch {
		case a.Type == attrPrefix:
			p.Prefix = unix.ByteSliceToString(a.Data)
		case a.Type == attrPayload:
			p.header(a.Data)
		case a.Type == attrInDev && len(a.Data) == 4:
			p.Link = int(binary.BigEndian.Uint32(a.Data))
		case a.Type == attrSeq && len(a.Data) == 4:
			number = binary.BigEndian.Uint32(a.Data)
		}
	}
	return p, number, nil
}

const (
	minIPv4, lenIPv6 = 20, 40

	protoICMP, protoICMPv6 = unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6
)

// header reads an IP header and what follows it.
func (p *Packet) header(b []byte) {
	switch {
	case len(b) >= minIPv4 && b[0]>>4 == 4:
		p.From, p.To, p.Protocol = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9]
		if size := int(b[0]&15) * 4; len(b) >= size && binary.BigEndian.Uint16(b[6:])&0x1fff == 0 { // not a later fragment
			p.transport(b[size:])
		}
	case len(b) >= lenIPv6 && b[0]>>4 == 6:
		p.From, p.To, p.Protocol = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6]
		p.transport(b[lenIPv6:])
	}
}

// transport reads the port, if the protocol has ports. Behind an extension header of IPv6 it is not looked for.
func (p *Packet) transport(b []byte) {
	switch p.Protocol {
	case protoICMP, protoICMPv6:
		if len(b) > 0 {
			p.Port = uint16(b[0])
		}
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE:
		if len(b) >= 4 {
			p.Port = binary.BigEndian.Uint16(b[2:])
		}
	}
}
