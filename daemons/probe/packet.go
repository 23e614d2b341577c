// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
)

// packet is the packet of a probe: a SYN, a UDP datagram or an echo request. It has a token that no address translation
// changes, by which it, its answers, and errors about it are found in every namespace.
type packet struct {
	src, dst     netip.Addr
	protocol     l4.Protocol
	sport, dport uint16
	token        [8]byte // of a SYN, the first four bytes are the sequence number
	pad          int     // bytes of data more
}

// These are lengths in bytes.
const (
	ip4Header  = 20
	ip6Header  = 40
	tcpHeader  = 20
	udpHeader  = 8
	icmpHeader = 8
)

func newPacket(src, dst netip.Addr, protocol l4.Protocol, port uint16) (*packet, error) {
	p := &packet{src: src, dst: dst, protocol: protocol, dport: port}
	if protocol == l4.ICMP && dst.Is6() {
		p.protocol = l4.ICMPv6
	}
	return p, p.renew(0)
}

// renew gives the packet another token, and a length.
func (p *packet) renew(pad int) error {
	p.pad = pad
	_, err := rand.Read(p.token[:])
	return err
}

// icmp returns the protocol of errors.
func (p *packet) icmp() l4.Protocol {
	if p.dst.Is6() {
		return l4.ICMPv6
	}
	return l4.ICMP
}

func (p *packet) network() int {
	if p.dst.Is6() {
		return ip6Header
	}
	return ip4Header
}

// sequence returns the number of a SYN, plus n.
func (p *packet) sequence(n int) []byte {
	return binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(p.token[:])+uint32(n))
}

// matches describes the packet, its answers, and ICMP errors, which quote it.
func (p *packet) matches() []nft.TraceMatch {
	proto, quote := uint8(p.protocol), uint32(icmpHeader+p.network())
	if p.protocol == l4.TCP {
		list := []nft.TraceMatch{
			{Protocol: proto, Offset: 4, Value: p.sequence(0)}, {Protocol: proto, Offset: 8, Value: p.sequence(1)},
			{Protocol: uint8(p.icmp()), Offset: quote + 4, Value: p.sequence(0)},
		}
		if p.pad > 0 { // RST acknowledges the data, SYN ACK does not
			list = append(list, nft.TraceMatch{Protocol: proto, Offset: 8, Value: p.sequence(1 + p.pad)})
		}
		return list
	}
	list := []nft.TraceMatch{
		{Protocol: proto, Offset: udpHeader, Value: p.token[:]}, {Protocol: uint8(p.icmp()), Offset: quote + udpHeader, Value: p.token[:]},
	}
	if p.protocol == l4.UDP {
		list = append(list, nft.TraceMatch{Protocol: proto, Offset: 0, Value: ports(p.dport, p.sport)})
	}
	return list
}

func ports(a, b uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, a), b)
}

// kind is which packet was seen.
type kind int

const (
	probe  kind = iota
	answer      // SYN ACK, RST, an echo reply, a datagram
	failed      // an ICMP error
	kinds       // how many there are
)

func (k kind) String() string { return [...]string{"probe", "answer", "error"}[k] }

// seen is what the headers of a packet say.
type seen struct {
	kind     kind
	src, dst netip.Addr
	reset    bool // an answer of TCP that refuses
	icmp     [2]byte
}

// read reads the headers of a packet that met one of the matches.
func (p *packet) read(network, transport []byte) (s seen, ok bool) {
	if len(network) < p.network() || len(transport) < 8 {
		return s, false
	}
	proto, at, size := l4.Protocol(network[9]), 12, 4
	if p.dst.Is6() {
		proto, at, size = l4.Protocol(network[6]), 8, 16
	}
	s.src, _ = netip.AddrFromSlice(network[at : at+size])
	s.dst, _ = netip.AddrFromSlice(network[at+size : at+2*size])
	switch {
	case proto != p.protocol || proto == p.icmp() && isError(p.dst.Is6(), transport[0]):
		s.kind, s.icmp = failed, [2]byte(transport)
	case proto == l4.TCP && bytes.Equal(transport[4:8], p.token[:4]),
		proto == l4.UDP && len(transport) >= 16 && bytes.Equal(transport[8:16], p.token[:]) && binary.BigEndian.Uint16(transport[2:]) != p.sport,
		proto == p.icmp() && (transport[0] == 8 || transport[0] == 128):
	default:
		s.kind, s.reset = answer, proto == l4.TCP && len(transport) > 13 && transport[13]&4 != 0
	}
	return s, true
}

// isError reports whether a type of ICMP is an error, which quotes a packet.
func isError(v6 bool, typ byte) bool {
	if v6 {
		return typ < 128
	}
	return typ != 0 && typ != 8
}

// bytes returns the packet with its IP header.
func (p *packet) bytes() []byte {
	body := p.transport()
	if p.dst.Is6() {
		b := make([]byte, ip6Header, ip6Header+len(body))
		b[0], b[6], b[7] = 0x60, byte(p.protocol), 64
		binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
		copy(b[8:], p.src.AsSlice())
		copy(b[24:], p.dst.AsSlice())
		return append(b, body...)
	}
	b := make([]byte, ip4Header, ip4Header+len(body)) // the kernel computes the checksum of this header
	b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, byte(p.protocol)
	binary.BigEndian.PutUint16(b[2:], uint16(ip4Header+len(body)))
	copy(b[12:], p.src.AsSlice())
	copy(b[16:], p.dst.AsSlice())
	return append(b, body...)
}

// transport returns the packet without its IP header.
func (p *packet) transport() []byte {
	data, at := make([]byte, p.pad), 2
	var b []byte
	switch p.protocol {
	case l4.TCP:
		b, at = make([]byte, tcpHeader), 16
		copy(b, ports(p.sport, p.dport))
		copy(b[4:], p.token[:4])
		b[12], b[13], b[14] = 5<<4, 2, 0xff // SYN, window
	case l4.UDP:
		b, at = make([]byte, udpHeader), 6
		copy(b, ports(p.sport, p.dport))
		binary.BigEndian.PutUint16(b[4:], uint16(udpHeader+len(p.token)+p.pad))
		b = append(b, p.token[:]...)
	default:
		b = make([]byte, icmpHeader)
		if b[0] = 8; p.dst.Is6() {
			b[0] = 128
		}
		copy(b[4:], p.token[4:8])
		b = append(b, p.token[:]...)
	}
	b = append(b, data...)
	binary.BigEndian.PutUint16(b[at:], p.checksum(b))
	return b
}

// checksum returns the Internet checksum (RFC 1071), with the addresses unless it is ICMP for IPv4.
func (p *packet) checksum(b []byte) uint16 {
	sum := uint32(0)
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	if add(b); p.protocol != l4.ICMP {
		add(p.src.AsSlice())
		add(p.dst.AsSlice())
		sum += uint32(p.protocol) + uint32(len(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if s := ^uint16(sum); s != 0 || p.protocol != l4.UDP {
		return s
	}
	return 0xffff
}
