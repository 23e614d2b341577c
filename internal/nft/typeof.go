// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A set whose key has raw bytes of a packet is printed by nft as `typeof ip saddr . @th,336,32`, and nft loads a rule
// that looks up such a set only if the set has this type. google/nftables v0.3.0 cannot write this. It is stored as
// nested triples of type, length and value in the set's user data. The numbers are those of nftables/include
// (expression.h, proto.h) and of libnftnl/include/libnftnl/udata.h. They are stored in the kernel, so they do not
// change.
const (
	udataByteOrder  = 0 // of a set
	udataDataOrder  = 1 // of a map
	udataTypeof     = 3 // of a set: the key
	udataDataTypeof = 4 // of a map: the data

	typeofExpr = 0 // kind of the expression
	typeofData = 1 // its parts

	typeofPayload = 7
	typeofMeta    = 9
	typeofConcat  = 13
	typeofNumgen  = 23

	metaKey = 0

	numgenType = 0
	numgenMod  = 1
	numgenFrom = 2

	payloadDesc   = 0
	payloadField  = 1
	payloadBase   = 2
	payloadOffset = 3
	payloadLength = 4

	descIPv4, fieldOfIPv4 = 12, 11 // ip saddr
	descIPv6, fieldOfIPv6 = 13, 8  // ip6 saddr
	fieldToIPv4           = 12     // ip daddr
	fieldToIPv6           = 9      // ip6 daddr
	descPorts, fieldPorts = 11, 2  // th dport
	baseTransport         = 3
)

// typed adds the kinds of the key's parts to a message that makes a set with raw bytes in its key. The kernel takes the
// last of two attributes of a type.
func typed(m *netlink.Message) error {
	if m.Header.Type != msgNewSet || len(m.Data) < 4 {
		return nil
	}
	a, err := attributes(m.Data[4:])
	if err != nil {
		return err
	}
	name := a.Text(unix.NFTA_SET_NAME)
	spec, ok := specOf(name)
	if a.Text(unix.NFTA_SET_TABLE) == ServicesTable {
		spec, ok = serviceSet(name)
	}
	if !ok || spec.level != ofTunnel && !spec.inside && !spec.slotted() {
		return nil
	}
	data, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_SET_USERDATA, Data: spec.typeof()}})
	m.Data = append(m.Data[:len(m.Data):len(m.Data)], data...)
	return err
}

// typeof returns the user data of a set.
func (s setSpec) typeof() []byte {
	switch {
	case s.slotted():
		return s.typeofSlots()
	case s.inside:
		return s.typeofInside()
	}
	end := payloadOf(descIPv4, fieldOfIPv4)
	if s.key[0] == fieldIPv6 {
		end = payloadOf(descIPv6, fieldOfIPv6)
	}
	at := uint32(insideAt + 12)
	if s.key[1] == fieldIPv6 {
		at = insideAt + 8
	}
	return typeofPair(end, s.raw(at))
}

// typeofInside is for a link, and a destination in an error of ICMP.
func (s setSpec) typeofInside() []byte {
	at := uint32(errorAt + 16)
	if s.key[1] == fieldIPv6 {
		at = errorAt + 24
	}
	return typeofPair(expression(typeofMeta, udata(metaKey, udataNumber(uint32(expr.MetaKeyIIFNAME)))), s.raw(at))
}

// slotted reports whether a rule draws the last field of the key.
func (s setSpec) slotted() bool { return len(s.key) > 0 && s.key[len(s.key)-1] == fieldSlot }

// typeofSlots is for a map from a frontend and a slot to an endpoint: ip daddr . meta l4proto . th dport . numgen random mod 2 :
// ip daddr . th dport. The modulus has no meaning; each rule has its own.
func (s setSpec) typeofSlots() []byte {
	addr := payloadOf(descIPv4, fieldToIPv4)
	if s.data[0] == fieldIPv6 {
		addr = payloadOf(descIPv6, fieldToIPv6)
	}
	port := payloadOf(descPorts, fieldPorts)
	parts := [][]byte{
		expression(typeofMeta, udata(metaKey, udataNumber(uint32(expr.MetaKeyL4PROTO)))), port,
		expression(typeofNumgen, udata(numgenType, udataNumber(unix.NFT_NG_RANDOM), numgenMod, udataNumber(2), numgenFrom, udataNumber(0))),
	}
	if s.key[0] == s.data[0] {
		parts = append([][]byte{addr}, parts...)
	}
	return udata(udataByteOrder, udataNumber(0), udataDataOrder, udataNumber(0),
		udataTypeof, concatOf(parts...), udataDataTypeof, concatOf(addr, port))
}

func payloadOf(desc, field uint32) []byte {
	return expression(typeofPayload, udata(payloadDesc, udataNumber(desc), payloadField, udataNumber(field)))
}

// concatOf describes fields one after the other.
func concatOf(parts ...[]byte) []byte {
	var list []any
	for i, p := range parts {
		list = append(list, i, p)
	}
	return expression(typeofConcat, udata(list...))
}

// raw is the last field of a key, at this offset, in bytes, from the beginning of the transport header.
func (s setSpec) raw(at uint32) []byte {
	return expression(typeofPayload, udata(payloadDesc, udataNumber(0), payloadField, udataNumber(0), payloadBase, udataNumber(baseTransport),
		payloadOffset, udataNumber(8*at), payloadLength, udataNumber(8*uint32(s.key[1].size()))))
}

func typeofPair(first, second []byte) []byte {
	return udata(udataByteOrder, udataNumber(0), udataTypeof, concatOf(first, second))
}

func expression(kind uint32, data []byte) []byte {
	return udata(typeofExpr, udataNumber(kind), typeofData, data)
}

func udataNumber(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// udata joins triples. The arguments are types (int) and values ([]byte), in turn.
func udata(pairs ...any) (b []byte) {
	for i := 0; i+1 < len(pairs); i += 2 {
		value := pairs[i+1].([]byte)
		b = append(append(b, byte(pairs[i].(int)), byte(len(value))), value...)
	}
	return b
}
