// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/owner"
)

// MaxComment is the longest comment, in bytes: the kernel takes 253, but a
// longer one than this cannot be loaded again with `nft -f` (NFTNL_UDATA_COMMENT_MAXLEN).
const MaxComment = 128

// Hex is binary data that is written as hexadecimal digits in JSON.
type Hex []byte

// MarshalText writes lower case digits.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads digits of either case.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	*h = b
	return err
}

// Element is one element of one of our sets or maps, in the kernel's own bytes, so that a
// record can restore it without knowing its meaning. KeyEnd is the other end of a range,
// inclusive, in network-level sets. Data is empty in sets. Comment is for people and for
// finding the owner.
type Element struct {
	Set     string `json:"set"`
	Key     Hex    `json:"key"`
	KeyEnd  Hex    `json:"keyEnd,omitempty"`
	Data    Hex    `json:"data,omitempty"`
	Comment string `json:"comment,omitempty"`

	timed   bool // it has a timeout: a removal's or another program's
	leaving bool // the timeout is that of one of our removals
}

// same reports whether two elements have the same owner and the same data. The rest of a
// comment is for people: replacing an element to update it would cost every process an RCU
// wait, at each ADD where two networks share a bridge.
func (e Element) same(o Element) bool {
	mine, ok1 := OwnerOf(e.Comment)
	theirs, ok2 := OwnerOf(o.Comment)
	return e.SameKey(o) && bytes.Equal(e.Data, o.Data) && ok1 == ok2 && (!ok1 || mine == theirs)
}

// SameKey reports whether two elements are of one set and key.
func (e Element) SameKey(o Element) bool {
	return e.Set == o.Set && bytes.Equal(e.Key, o.Key) && bytes.Equal(e.KeyEnd, o.KeyEnd)
}

// ofAnother reports whether have, found under e's key, belongs to another owner: by the owner
// in both comments, else by the data.
func (e Element) ofAnother(have Element) bool {
	mine, ok1 := OwnerOf(e.Comment)
	theirs, ok2 := OwnerOf(have.Comment)
	if ok1 && ok2 {
		return mine != theirs
	}
	return len(e.Data) > 0 && !bytes.Equal(e.Data, have.Data)
}

// Changed reports whether have, found under e's key, has e's owner but other data.
func (e Element) Changed(have Element) bool {
	return !e.ofAnother(have) && !bytes.Equal(e.Data, have.Data)
}

// Container is the container's address in an element of an attachment; ok is false for an
// element without one.
func (e Element) Container() (a netip.Addr, ok bool) {
	spec, ok := specOf(e.Set)
	at, fields := e.Key, spec.key
	if len(e.Data) > 0 { // of a published port
		at, fields = e.Data, spec.data
	}
	if !ok || len(fields) == 0 || fields[0] != fieldIPv4 && fields[0] != fieldIPv6 || len(at) != concatLen(fields) {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(at[:fields[0].size()])
}

// OfInterface reports whether the plugin that created the interface made this element of the
// attachment. The others are portmap's.
func (e Element) OfInterface() bool {
	return e.Masquerades() || e.Set == SetSpoofChecked || e.Set == SetSpoofAllowed
}

// Comment returns the comment of an attachment's elements:
// "<owner> <network>/<container>/<interface>", cut to MaxComment bytes.
func Comment(key, network, containerID, ifName string) string {
	return cleanComment(key + " " + network + "/" + containerID + "/" + ifName)
}

// OwnerOf returns the owner key that a comment begins with; ok is false for the comment of
// another program or of a network.
func OwnerOf(comment string) (key string, ok bool) {
	key, _, ok = strings.Cut(comment, " ")
	return key, ok && owner.Key(key).Valid()
}

// cleanComment replaces what nft cannot read back and cuts the text at the end of a rune.
func cleanComment(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == 0x7f || r == utf8.RuneError {
			return '_'
		}
		return r
	}, s)
	if len(s) <= MaxComment {
		return s
	}
	cut := MaxComment
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// Family is the family of the element's table.
func (e Element) Family() nftables.TableFamily {
	spec, _ := specOf(e.Set)
	return spec.family
}

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
