// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	prefixes "github.com/patchbay-net/patchbay/internal/prefix" // the tests have a function prefix
)

// line is one rule of a chain, as a value that can be compared. A field that is zero does not count.
type line struct {
	what    what
	source  bool       // addr, pods and nets are about the packet's source
	family  int8       // 4 or 6
	addr    netip.Addr // one address
	pods    string     // set
	nets    string     // set
	ports   policy.Ports
	portSet string // set of ports of the protocol in ports
	counter string
	verdict expr.VerdictKind
	chain   string // target of a jump, or map of the verdict
	comment string
	log     Log    // of reporting, quiet and limited
	prefix  string // of reporting, quiet and limited
}

// what is a kind of line. Most are rules of policies.
type what int8

const (
	matching    what = iota
	established      // accept packets of connections that were allowed, and errors about them
	discovery        // accept ICMPv6 of the types in ports that no router has forwarded
	listening        // accept ICMPv6 of the types in ports from addr; without addr, from an address of the link
	midstream        // a TCP packet within a connection that is not tracked
	answering        // not TCP, so it may be an answer in a flow that ended
	ended            // it is one, by the set in pods
	dispatch         // verdict of the map in chain
	counting         // no verdict
	reporting        // without a verdict: it logs packets that the next rule drops
	linkLocal        // from a pod's link, and the source address is link-local
	untold           // jump to the chain that tells, if the flow was not told lately
	quiet            // tell, if nothing was told about the pod lately
	limited          // tell, within the limits
)

const (
	reg1   = unix.NFT_REG_1
	ctNew  = 1 << 3 // include/uapi/linux/netfilter/nf_conntrack_common.h: bit IP_CT_NEW of ct state
	ctOld  = 1<<1 | 1<<2
	tcpFin = 1 << 0
	tcpSyn = 1 << 1
	tcpRst = 1 << 2
	tcpAck = 1 << 4
)

// exprs returns the expressions of a rule, in the order in which nft writes them.
func (l line) exprs() []expr.Any {
	switch l.what {
	case established:
		return append(ctState(ctOld), l.end()...)
	case linkLocal:
		return append(append(fromPod(), fromLinkLocal()...), l.end()...)
	case discovery:
		return append(append(l.icmp6(), notForwarded()...), l.end()...)
	case listening:
		return append(append(l.icmp6(), l.fromLink()...), l.end()...)
	case midstream:
		return append(append(ctState(ctNew), tcpFlags()...), l.end()...)
	case answering:
		return append(notTCP(), l.end()...)
	case ended:
		return nft.Ended(l.pods, l.chain)
	case untold, quiet, limited:
		return l.tells()
	case dispatch:
		return append(l.ofFamily(), l.load(), &expr.Lookup{SourceRegister: reg1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: l.chain})
	}
	out := l.ofFamily()
	if l.addr.IsValid() {
		out = append(out, l.load(), &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: l.addr.AsSlice()})
	}
	for _, set := range []string{l.nets, l.pods} {
		if set != "" {
			out = append(out, l.load(), &expr.Lookup{SourceRegister: reg1, SetName: set})
		}
	}
	return append(append(out, l.port()...), l.end()...)
}

// end returns the counter and the verdict.
func (l line) end() (out []expr.Any) {
	if l.what == reporting {
		return l.report()
	}
	if l.counter != "" {
		// The library writes the name as it is; the kernel returns it with a zero byte.
		out = append(out, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: l.counter + "\x00"})
	}
	if l.what == counting {
		return out
	}
	return append(out, &expr.Verdict{Kind: l.verdict, Chain: l.chain})
}

func meta(key expr.MetaKey, value byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{value}}}
}

func (l line) ofFamily() []expr.Any {
	switch l.family {
	case 4:
		return meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
	case 6:
		return meta(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV6)
	}
	return nil
}

// load loads the source or the destination address.
func (l line) load() *expr.Payload {
	offset, size := uint32(12), uint32(4)
	if l.family == 6 {
		offset, size = 8, 16
	}
	if !l.source {
		offset += size
	}
	return &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// port matches the protocol and the destination port.
func (l line) port() []expr.Any {
	if l.ports.Protocol == 0 {
		return nil
	}
	out := meta(expr.MetaKeyL4PROTO, byte(l.ports.Protocol))
	if l.ports.First == 0 && l.portSet == "" {
		return out
	}
	out = append(out, &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	if l.portSet != "" {
		return append(out, &expr.Lookup{SourceRegister: reg1, SetName: l.portSet})
	}
	return append(out, between(l.ports.First, l.ports.Last, 2)...)
}

// icmp6 matches the types of ICMPv6 in ports.
func (l line) icmp6() []expr.Any {
	out := append(l.ofFamily(), meta(expr.MetaKeyL4PROTO, unix.IPPROTO_ICMPV6)...)
	out = append(out, &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 1})
	return append(out, between(l.ports.First, l.ports.Last, 1)...)
}

// between compares a number of so many bytes with both ends of a range.
func between(first, last uint16, size int) []expr.Any {
	bytes := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n)[2-size:] }
	if first == last {
		return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: bytes(first)}}
	}
	return []expr.Any{
		&expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: bytes(first)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: reg1, Data: bytes(last)},
	}
}

// ctState matches packets whose connection is in one of the states.
func ctState(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

// tcpFlags matches TCP packets that neither begin nor end a connection.
func tcpFlags() []expr.Any {
	return append(meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{tcpFin | tcpSyn | tcpRst | tcpAck}, Xor: make([]byte, 1)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{tcpAck}})
}

// notTCP matches packets of other protocols.
func notTCP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{unix.IPPROTO_TCP}}}
}

// fromPod matches packets that come from the link of a pod.
func fromPod() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: nft.SetOwnSource}}
}

// notForwarded matches IPv6 packets with the hop limit 255.
func notForwarded() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{255}},
	}
}

// fromLink matches IPv6 packets from addr. If there is no addr, it matches packets from link-local addresses.
func (l line) fromLink() []expr.Any {
	if l.addr.IsValid() {
		return []expr.Any{l.load(), &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: l.addr.AsSlice()}}
	}
	return fromLinkLocal()[len(l.ofFamily()):]
}

// fromLinkLocal matches packets from fe80::/10.
func fromLinkLocal() []expr.Any {
	from := prefixes.LinkLocal()
	l := line{family: 6, source: true}
	return append(l.ofFamily(), l.load(),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 16, Mask: net.CIDRMask(from.Bits(), 128), Xor: make([]byte, 16)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: from.Addr().AsSlice()})
}

// rule returns the rule for a chain of our table.
func (l line) rule(chain string) *nftables.Rule {
	return &nftables.Rule{Table: table(), Chain: &nftables.Chain{Name: chain, Table: table()}, Exprs: l.exprs(), UserData: nft.RuleComment(l.comment)}
}

func table() *nftables.Table {
	return &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyINet}
}
