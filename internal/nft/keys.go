// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ProtoPort is the key of a port published on every address. proto is an IP
// protocol number.
func ProtoPort(proto uint8, port uint16) []byte {
	return append([]byte{proto, 0, 0, 0}, portField(port)...)
}

// AddrProtoPort is the key of a port published on one host address.
func AddrProtoPort(host netip.Addr, proto uint8, port uint16) []byte {
	return append(host.Unmap().AsSlice(), ProtoPort(proto, port)...)
}

// AddrPort is the destination of a published port.
func AddrPort(to netip.AddrPort) []byte {
	return append(to.Addr().Unmap().AsSlice(), portField(to.Port())...)
}

// Addr is a single address.
func Addr(a netip.Addr) []byte { return a.Unmap().AsSlice() }

// PrefixPair is the range of (from . to), both of one family: the first and
// the last address of each.
func PrefixPair(from, to netip.Prefix) (key, keyEnd []byte) {
	from, to = from.Masked(), to.Masked()
	key = append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	keyEnd = append(LastAddr(from), LastAddr(to)...)
	return key, keyEnd
}

// IfName is an interface name, or an owner key, of up to 15 bytes.
func IfName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

// IfNamePair is (incoming . outgoing).
func IfNamePair(in, out string) []byte { return append(IfName(in), IfName(out)...) }

// IfNameMAC is (interface . Ethernet address).
func IfNameMAC(name string, mac net.HardwareAddr) []byte {
	var ether [8]byte // 6 and padding
	copy(ether[:6], mac)
	return append(IfName(name), ether[:]...)
}

func portField(port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), 0, 0)
}

// LastAddr is the highest address of a prefix.
func LastAddr(p netip.Prefix) []byte {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return b
}
