// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// match is a sequence of expressions. The rule ends at the first expression that does not
// match.
type match = []expr.Any

// A concatenated key fills consecutive 32-bit registers. NFT_REG_1 is the first four of them,
// NFT_REG_2 the next four. We write rules as the kernel returns them, so that Verify can
// compare them.
const reg1 = unix.NFT_REG_1

// reg32 returns the kernel's number of the i-th 32-bit register.
func reg32(i int) uint32 {
	if i%4 == 0 {
		return uint32(reg1 + i/4)
	}
	return uint32(unix.NFT_REG32_00 + i)
}

// rule joins expressions to a rule.
func rule(parts ...match) match {
	var r match
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

// family matches IPv6 packets if v6 is set, else IPv4 packets.
func family(v6 bool) match {
	proto := byte(unix.NFPROTO_IPV4)
	if v6 {
		proto = unix.NFPROTO_IPV6
	}
	return metaIs(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{proto})
}

// metaIs compares a field of the packet's metadata.
func metaIs(key expr.MetaKey, op expr.CmpOp, data []byte) match {
	return match{loadMeta(key, reg1), &expr.Cmp{Op: op, Register: reg1, Data: data}}
}

// MatchPrefix compares the source or destination address in the form that iptables-nft reads.
func MatchPrefix(p netip.Prefix, source bool, op expr.CmpOp) match {
	p = p.Masked()
	load := match{loadAddr(p.Addr().Is6(), source, reg1)}
	return rule(load, masked(reg1, p.Bits(), p.Addr().BitLen()/8), match{&expr.Cmp{Op: op, Register: reg1, Data: p.Addr().AsSlice()}})
}

// masked keeps the first bits of an address in a register and clears the others.
func masked(reg uint32, bits, size int) match {
	if bits == size*8 {
		return nil
	}
	return match{bitwise(reg, net.CIDRMask(bits, size*8))}
}

// bitwise keeps only the bits of a mask in a register.
func bitwise(reg uint32, mask []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

// loadAddr loads the source or destination address into a register.
func loadAddr(v6, source bool, reg uint32) *expr.Payload {
	offset, length := uint32(12), uint32(4)
	if v6 {
		offset, length = 8, 16
	}
	if !source {
		offset += length
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// loadPort loads the protocol and the destination port into two 32-bit registers, from
// register number word on.
func loadPort(word int) match {
	return match{
		loadMeta(expr.MetaKeyL4PROTO, reg32(word)),
		&expr.Payload{DestRegister: reg32(word + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// inSet checks whether the value that begins in register 1 is in the set.
func inSet(set string, not bool) *expr.Lookup {
	return &expr.Lookup{SourceRegister: reg1, SetName: set, Invert: not}
}

// addrsIn checks whether (source . destination) is in a set.
func addrsIn(v6 bool, set string) match {
	return rule(family(v6), addrs(v6), match{inSet(set, false)})
}

// addrs loads the source and the destination address, beginning in register 1.
func addrs(v6 bool) match {
	second := reg32(1)
	if v6 {
		second = reg32(4)
	}
	return match{loadAddr(v6, true, reg1), loadAddr(v6, false, second)}
}

// addrIn checks whether one address of the packet is in a set.
func addrIn(v6, source bool, set string) match {
	return rule(family(v6), match{loadAddr(v6, source, reg1), inSet(set, false)})
}

// dnatBy changes the destination of a packet that meets the conditions to the address and port
// that a map has for its key. If host is set, the key begins with the destination address.
func dnatBy(v6, host bool, name string, conditions ...expr.Any) match {
	return rule(family(v6), conditions, loadEnd(v6, host), dnatFrom(v6, name))
}

// loadEnd loads where a packet goes, beginning in register 1: protocol and port, and if host is set the address before them.
func loadEnd(v6, host bool) match {
	if !host {
		return loadPort(0)
	}
	return rule(match{loadAddr(v6, false, reg1)}, loadPort(words(v6)))
}

// words returns how many 32-bit registers an address fills.
func words(v6 bool) int {
	if v6 {
		return 4
	}
	return 1
}

// dnatFrom changes the destination of a packet to the address and port that a map has for the key in register 1.
func dnatFrom(v6 bool, name string) match {
	to, proto := uint32(unix.NFPROTO_IPV4), reg32(words(v6))
	if v6 {
		to = unix.NFPROTO_IPV6
	}
	return match{
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: name},
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: to, Specified: true,
			RegAddrMin: reg1, RegAddrMax: reg1, RegProtoMin: proto, RegProtoMax: proto,
		},
	}
}

// snatBy changes the source of a packet to the address that a map has for it.
func snatBy(v6 bool, name string) match {
	to := uint32(unix.NFPROTO_IPV4)
	if v6 {
		to = unix.NFPROTO_IPV6
	}
	return rule(family(v6), match{
		loadAddr(v6, true, reg1),
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: name},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: to, RegAddrMin: reg1, RegAddrMax: reg1, FullyRandom: true}, // why: AnyPort
	})
}

// multicast matches packets to a multicast group, or with CmpOpNeq to any other address.
func multicast(v6 bool, op expr.CmpOp) match {
	if v6 {
		return rule(family(v6), match{
			&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 1},
			&expr.Cmp{Op: op, Register: reg1, Data: []byte{0xff}},
		})
	}
	return rule(family(v6), MatchPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4), false, op))
}

// toLocal matches packets to an address of this host.
func toLocal() match {
	return match{
		&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: native(unix.RTN_LOCAL)},
	}
}

// Bits of a connection's status (include/uapi/linux/netfilter/nf_conntrack_common.h).
const (
	ipsSrcNAT = 1 << 4 // IPS_SRC_NAT
	ipsDstNAT = 1 << 5 // IPS_DST_NAT
)

// published matches packets that arrived through a published port (ct status dnat).
func published() match { return connectionIs(ipsDstNAT) }

// translated matches packets whose source was changed (ct status snat), as masquerade does.
func translated() match { return connectionIs(ipsSrcNAT) }

// connectionIs matches packets of connections whose status has a bit.
func connectionIs(bit uint32) match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		bitwise(reg1, native(bit)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

// loadMeta loads packet metadata into a register.
func loadMeta(key expr.MetaKey, reg uint32) *expr.Meta {
	return &expr.Meta{Key: key, Register: reg}
}

func masquerade() match { return match{&expr.Masq{}} }

func verdict(kind expr.VerdictKind) match { return match{&expr.Verdict{Kind: kind}} }

func goTo(chain string) match {
	return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func jump(chain string) match {
	return match{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}
