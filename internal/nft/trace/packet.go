// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Packet is the first packet of a connection. Its addresses are those that the hook sees.
type Packet struct {
	V6       bool
	From, To netip.Addr // not known if not valid; at most one is not
	Protocol uint8      // not known if 0
	Port     uint16     // of the destination, or the type of ICMP; not known if 0

	Hops uint8 // hop limit of IPv6; not known if 0

	Ignores func(nft.Rule) bool // rules that count as if they did not match; nil: none
	Without []string            // sets that count as if they had nothing of the packet

	Outside Outside // what the address that is not known cannot be; nil if it may be any
}

// Outside says what an address that is not known cannot be.
type Outside interface {
	Lacks(set string) bool   // the set surely does not have it
	Differs(netip.Addr) bool // it is surely another address
}

// cells are bytes of a packet, of which some may not be known.
type cells []int16

const (
	unknown = -1
	outside = -2 // of the address for which there is Outside
)

func blank(n int) cells { return filled(n, unknown) }

func filled(n int, with int16) cells {
	c := make(cells, n)
	for i := range c {
		c[i] = with
	}
	return c
}

// address reports whether the bytes are those of an address outside.
func (c cells) address() bool {
	return (len(c) == 4 || len(c) == 16) && !slices.ContainsFunc(c, func(v int16) bool { return v != outside })
}

func (c cells) put(at int, b ...byte) {
	for i, v := range b {
		c[at+i] = int16(v)
	}
}

// known returns the bytes if all are known.
func (c cells) known() (b []byte, ok bool) {
	for _, v := range c {
		if v < 0 {
			return nil, false
		}
		b = append(b, byte(v))
	}
	return b, true
}

// network returns the header of IP, without options or extension headers.
func (p Packet) network() cells {
	size, protocol, from := 20, 9, 12
	if p.V6 {
		size, protocol, from = 40, 6, 8
	}
	h := blank(size)
	if p.Protocol != 0 {
		h.put(protocol, p.Protocol)
	}
	if p.V6 && p.Hops != 0 {
		h.put(7, p.Hops)
	}
	copy(h[from:], p.address(p.From, size-from))
	copy(h[size-(size-from)/2:], p.address(p.To, size-from))
	return h
}

// address returns one of the addresses, which have so many bytes together.
func (p Packet) address(a netip.Addr, both int) cells {
	switch {
	case a.IsValid():
		return cellsOf(a.AsSlice())
	case p.Outside != nil:
		return filled(both/2, outside)
	}
	return blank(both / 2)
}

// tcpSyn is the only flag of the first packet of a TCP connection.
const tcpSyn = 1 << 1

// transport returns the beginning of the header behind that of IP.
func (p Packet) transport() cells {
	h := blank(20)
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		h.put(13, tcpSyn)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if p.Port != 0 {
			h.put(0, byte(p.Port), 0)
		}
		return h
	case unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
	default:
		return h
	}
	if p.Port != 0 {
		h.put(2, binary.BigEndian.AppendUint16(nil, p.Port)...)
	}
	return h
}

// meta returns a value of the packet that is in no header.
func (p Packet) meta(key uint32) cells {
	family, ether := byte(unix.NFPROTO_IPV4), uint16(unix.ETH_P_IP)
	if p.V6 {
		family, ether = unix.NFPROTO_IPV6, unix.ETH_P_IPV6
	}
	c := blank(1)
	switch key {
	case unix.NFT_META_NFPROTO:
		c.put(0, family)
	case unix.NFT_META_L4PROTO:
		if p.Protocol != 0 {
			c.put(0, p.Protocol)
		}
	case unix.NFT_META_PROTOCOL:
		c = blank(2)
		c.put(0, binary.BigEndian.AppendUint16(nil, ether)...)
	default:
		return blank(unix.IFNAMSIZ) // the longest value
	}
	return c
}

// ct returns a value of connection tracking: the packet begins a connection.
func ct(key uint32) cells {
	if key != unix.NFT_CT_STATE {
		return blank(unix.IFNAMSIZ)
	}
	const stateNew = 1 << 3 // include/uapi/linux/netfilter/nf_conntrack_common.h
	c := blank(4)
	c.put(0, binary.NativeEndian.AppendUint32(nil, stateNew)...)
	return c
}

// registers are the kernel's registers: sixteen words.
type registers [64]int16

func newRegisters() *registers {
	r := new(registers)
	r.forget()
	return r
}

// forget makes all registers unknown.
func (r *registers) forget() { copy(r[:], blank(len(r))) }

// at returns the bytes of a register. A name of a register is that of a word, or of four.
func (r *registers) at(reg, size uint32) cells {
	first := 4 * (reg - unix.NFT_REG32_00)
	if reg <= unix.NFT_REG_4 {
		first = 16 * (reg - unix.NFT_REG_1)
	}
	if first > uint32(len(r)) || size > uint32(len(r))-first {
		return blank(int(min(size, uint32(len(r)))))
	}
	return r[first : first+size]
}

// load fills a register. The kernel fills the last word with zeros.
func (r *registers) load(reg uint32, c cells) {
	padded := append(append(make(cells, 0, len(c)+3), c...), make(cells, -len(c)&3)...)
	copy(r.at(reg, uint32(len(padded))), padded)
}
