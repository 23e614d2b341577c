// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

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
	From, To netip.Addr // an invalid address means unknown; at most one is unknown
	Protocol uint8      // not known if 0
	Port     uint16     // of the destination, or the type of ICMP; not known if 0

	Hops uint8 // hop limit of IPv6; unknown if 0

	Ignores func(nft.Rule) bool // rules that count as if they did not match; nil: none
	Without []string            // sets in which no lookup finds the packet

	Outside Outside // what the unknown address cannot be; nil if it may be any
}

// Outside says what an unknown address cannot be.
type Outside interface {
	Lacks(set string) bool   // the set surely does not have it
	Differs(netip.Addr) bool // it is surely another address
}

// knowledge returns what a walk knows of a packet.
func (p Packet) knowledge(members func(string) ([]nft.Member, cause)) *knowledge {
	netfilter, ethernet := family(p.V6)
	k := &knowledge{
		network:   p.network(),
		transport: p.transport(),
		meta:      map[uint32]cells{unix.NFT_META_NFPROTO: netfilter, unix.NFT_META_PROTOCOL: ethernet},
		ct:        map[uint32]cells{unix.NFT_CT_STATE: number(stateNew)},
		members:   members,
	}
	if p.Protocol != 0 {
		k.meta[unix.NFT_META_L4PROTO] = cellsOf(p.Protocol)
	}
	if p.Outside != nil {
		k.lacks = func(set string, key cells) bool { return key.address() && p.Outside.Lacks(set) }
		k.differs = func(c cells, value []byte) bool {
			a, ok := netip.AddrFromSlice(value)
			return ok && c.address() && p.Outside.Differs(a)
		}
	}
	return k
}

// Bits of the connection's state, as ct and conntrack number them (linux/netfilter/nf_conntrack_common.h).
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
)

// number returns a number of 32 bits in the host's byte order.
func number(n uint32) cells { return cellsOf(binary.NativeEndian.AppendUint32(nil, n)...) }

// family returns the numbers of a family of addresses, of netfilter and of Ethernet.
func family(v6 bool) (netfilter, ethernet cells) {
	if v6 {
		return cellsOf(unix.NFPROTO_IPV6), cellsOf(unix.ETH_P_IPV6>>8, unix.ETH_P_IPV6&0xff)
	}
	return cellsOf(unix.NFPROTO_IPV4), cellsOf(unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff)
}

// header returns the header of IP, without options or extension headers.
func header(from, to cells) cells {
	before := 12
	if len(from) == 16 {
		before = 8
	}
	return slices.Concat(blank(before, unsaid), from, to)
}

func (p Packet) network() cells {
	h := header(p.address(p.From), p.address(p.To))
	protocol := 9
	if p.V6 {
		protocol = 6
	}
	if p.Protocol != 0 {
		h[protocol] = cellsOf(p.Protocol)[0]
	}
	if p.V6 && p.Hops != 0 {
		h[7] = cellsOf(p.Hops)[0]
	}
	return h
}

// address returns one of the addresses.
func (p Packet) address(a netip.Addr) cells {
	size := 4
	if p.V6 {
		size = 16
	}
	switch {
	case a.IsValid():
		return cellsOf(a.AsSlice()...)
	case p.Outside != nil:
		return blank(size, outside)
	}
	return blank(size, unsaid)
}

// tcpSyn is the only flag of the first packet of a TCP connection.
const tcpSyn = 1 << 1

// transport returns the beginning of the header behind that of IP.
func (p Packet) transport() cells {
	h := blank(20, unsaid)
	if p.Protocol == unix.IPPROTO_TCP {
		h[13] = cellsOf(tcpSyn)[0]
	}
	switch p.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if p.Port != 0 {
			copy(h[2:], cellsOf(byte(p.Port>>8), byte(p.Port)))
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if p.Port != 0 {
			copy(h, cellsOf(byte(p.Port), 0))
		}
	}
	return h
}
