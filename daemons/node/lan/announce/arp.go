// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/net/bpf"
)

// message is an ARP message for IPv4 over Ethernet (RFC 826).
type message struct {
	Hardware, Protocol       uint16
	HardwareLen, ProtocolLen uint8
	Operation                uint16
	SenderMAC                [6]byte
	Sender                   [4]byte
	TargetMAC                [6]byte
	Target                   [4]byte
}

// These are values of its fields.
const (
	ethernet = 1
	ipv4     = 0x0800
	request  = 1
	reply    = 2
)

func broadcast() net.HardwareAddr { return bytes.Repeat([]byte{0xff}, macLen) }

// arpFilter lets all ARP of a link pass.
func arpFilter(index int) []bpf.Instruction {
	return append(on(index, 1), bpf.RetConstant{Val: maxPacket}, bpf.RetConstant{})
}

// maxPacket is how much of a packet a filter passes.
const maxPacket = 0xffff

var errOther = errors.New("it is no message for IPv4 over Ethernet")

func parse(b []byte) (m message, err error) {
	_, err = binary.Decode(b, binary.BigEndian, &m)
	if err == nil && (m.Hardware != ethernet || m.Protocol != ipv4 || m.HardwareLen != macLen || int(m.ProtocolLen) != len(m.Sender)) {
		err = errOther
	}
	return m, err
}

func (m message) bytes() []byte {
	m.Hardware, m.Protocol, m.HardwareLen, m.ProtocolLen = ethernet, ipv4, macLen, uint8(len(m.Sender))
	b, _ := binary.Append(nil, binary.BigEndian, m) // a struct of fixed size always fits
	return b
}

// answerARP answers requests until the socket is closed. A probe of a host that wants the address (RFC 5227, 2.1.1) is a request, too.
func (l *line) answerARP(context.Context) error {
	return read(l.arp, func(b []byte, from net.HardwareAddr) error {
		m, err := parse(b)
		if err != nil {
			return nil // it is not for us
		}
		mac, err := l.mac()
		if err != nil {
			return err
		}
		if sender := netip.AddrFrom4(m.Sender); l.Owns(sender) && !bytes.Equal(m.SenderMAC[:], mac) && l.Conflict != nil {
			l.Conflict(sender, net.HardwareAddr(m.SenderMAC[:]))
		}
		if m.Operation != request || m.Sender == m.Target || !l.Owns(netip.AddrFrom4(m.Target)) {
			return nil
		}
		l.answered.Add(1)
		out := message{Operation: reply, SenderMAC: [6]byte(mac), Sender: m.Target, TargetMAC: m.SenderMAC, Target: m.Sender}
		return send(l.arp, out.bytes(), from)
	})
}

// sayARP sends a gratuitous request and a gratuitous reply: RFC 5227 asks for the request, and some hosts heed only the other one.
func (l *line) sayARP(a netip.Addr, mac net.HardwareAddr) error {
	m := message{Operation: request, SenderMAC: [6]byte(mac), Sender: a.As4(), Target: a.As4()}
	err := send(l.arp, m.bytes(), broadcast())
	m.Operation, m.TargetMAC = reply, m.SenderMAC
	return errors.Join(err, send(l.arp, m.bytes(), broadcast()))
}
