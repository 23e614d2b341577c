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

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// MaxComment is the length of the longest comment, in bytes. The kernel accepts 253, but `nft
// -f` cannot load a comment of more than 128 (NFTNL_UDATA_COMMENT_MAXLEN).
const MaxComment = 128

// Hex is binary data. In JSON it is a string of hexadecimal digits.
type Hex []byte

// MarshalText writes lower-case digits.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads lower-case and upper-case digits.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	*h = b
	return err
}

// Element is one element of our sets or maps. Its key and data are the kernel's bytes, so a
// record can restore the element without knowing its meaning. In sets of networks, KeyEnd is
// the last value of a range. Data is empty in sets. Comment names the owner, for people and
// for our searches.
type Element struct {
	Set     string `json:"set"`
	Key     Hex    `json:"key"`
	KeyEnd  Hex    `json:"keyEnd,omitempty"`
	Data    Hex    `json:"data,omitempty"`
	Comment string `json:"comment,omitempty"`

	timed   bool // the element has a timeout, from a removal or from another program
	leaving bool // the timeout comes from one of our removals
}

// same reports whether two elements have the same owner and the same data. same ignores the
// rest of the comments, which is only for people. If it did not, two networks that share a
// bridge would replace each other's elements at each ADD, and every process would wait for RCU
// each time.
func (e Element) same(o Element) bool {
	mine, ok1 := OwnerOf(e.Comment)
	theirs, ok2 := OwnerOf(o.Comment)
	return e.SameKey(o) && bytes.Equal(e.Data, o.Data) && ok1 == ok2 && (!ok1 || mine == theirs)
}

// equal reports whether nothing differs that String shows.
func (e Element) equal(o Element) bool {
	return e.SameKey(o) && bytes.Equal(e.Data, o.Data) && e.Comment == o.Comment
}

// SameKey reports whether two elements have the same set and key.
func (e Element) SameKey(o Element) bool {
	return e.Set == o.Set && bytes.Equal(e.Key, o.Key) && bytes.Equal(e.KeyEnd, o.KeyEnd)
}

// ofAnother reports whether the kernel's element with e's key (have) belongs to another owner.
// ofAnother compares the owners in the comments; if one has no owner, it compares the data.
func (e Element) ofAnother(have Element) bool {
	mine, ok1 := OwnerOf(e.Comment)
	theirs, ok2 := OwnerOf(have.Comment)
	if ok1 && ok2 {
		return mine != theirs
	}
	return len(e.Data) > 0 && !bytes.Equal(e.Data, have.Data)
}

// Changed reports whether the kernel's element with e's key (have) has the same owner but other
// data.
func (e Element) Changed(have Element) bool {
	return !e.ofAnother(have) && !bytes.Equal(e.Data, have.Data)
}

// Container returns the container's address in an element of an attachment. ok is false if the
// element has none.
func (e Element) Container() (a netip.Addr, ok bool) {
	spec, ok := specOf(e.Set)
	at, fields := e.Key, spec.key
	if spec.exclusive() { // element of a published port
		at, fields = e.Data, spec.data
	}
	if !ok || len(fields) == 0 || fields[0] != fieldIPv4 && fields[0] != fieldIPv6 || len(at) != concatLen(fields) {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(at[:fields[0].size()])
}

// OfInterface reports whether this element of an attachment comes from the plugin that created
// the interface. If not, it comes from portmap, or OfPolicy is true.
func (e Element) OfInterface() bool {
	return e.Masquerades() || e.Set == SetSpoofChecked || e.Set == SetSpoofAllowed
}

// OfPolicy reports whether an ADD closed an address with this element (see policy.go).
func (e Element) OfPolicy() bool {
	spec, _ := specOf(e.Set)
	return spec.level == ofPolicy
}

// Comment returns the comment for an attachment's elements: "<owner>
// <network>/<container>/<interface>", cut to MaxComment bytes.
func Comment(key, network, containerID, ifName string) string {
	return CleanComment(key + " " + network + "/" + containerID + "/" + ifName)
}

// OwnerOf returns the owner key at the beginning of a comment. ok is false for the comment of
// a network or of another program.
func OwnerOf(comment string) (key string, ok bool) {
	key, _, ok = strings.Cut(comment, " ")
	return key, ok && owner.Key(key).Valid()
}

// NamesOf returns the names in the comment of an attachment's element. ok is false if the comment
// was cut, which shows because the hash of the names is not the key at its beginning.
func NamesOf(comment string) (network, containerID, ifName string, ok bool) {
	key, names, _ := strings.Cut(comment, " ")
	parts := strings.Split(names, "/")
	if len(parts) != 3 || string(owner.Of(parts[0], parts[1], parts[2])) != key {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// NetworkOf returns the network in the comment of an attachment's element. The network's name is
// complete even if the comment was cut. It returns "" for another comment.
func NetworkOf(comment string) string {
	network, _, _, ok := NamesOf(comment)
	if !ok && len(comment) >= MaxComment {
		_, names, _ := strings.Cut(comment, " ")
		network, _, ok = strings.Cut(names, "/")
	}
	if !ok {
		return ""
	}
	return network
}

// CleanComment replaces characters that nft cannot read back, and cuts the text after a complete
// rune to MaxComment bytes.
func CleanComment(s string) string {
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

// Family returns the address family of the element's table.
func (e Element) Family() nftables.TableFamily {
	spec, _ := specOf(e.Set)
	return spec.family
}

// ProtoPort returns the key of a port that is published on every address. proto is an IP
// protocol number.
func ProtoPort(proto uint8, port uint16) []byte {
	return append([]byte{proto, 0, 0, 0}, portField(port)...)
}

// AddrProtoPort returns the key of a port that is published on one address of the host.
func AddrProtoPort(host netip.Addr, proto uint8, port uint16) []byte {
	return append(host.Unmap().AsSlice(), ProtoPort(proto, port)...)
}

// AddrPort returns the data of a published port: address and port of the container.
func AddrPort(to netip.AddrPort) []byte {
	return append(to.Addr().Unmap().AsSlice(), portField(to.Port())...)
}

// Addr returns the key of a single address.
func Addr(a netip.Addr) []byte { return a.Unmap().AsSlice() }

// PrefixPair returns the range of pairs (from . to): key has the first address of each prefix,
// keyEnd the last. Both prefixes must have the same family.
func PrefixPair(from, to netip.Prefix) (key, keyEnd []byte) {
	from, to = from.Masked(), to.Masked()
	key = append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	keyEnd = append(prefix.Last(from).AsSlice(), prefix.Last(to).AsSlice()...)
	return key, keyEnd
}

// IfName returns the key of an interface name or an owner key of up to 15 bytes.
func IfName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

// IfNamePair returns the key (incoming interface . outgoing interface).
func IfNamePair(in, out string) []byte { return append(IfName(in), IfName(out)...) }

// IfNameMAC returns the key (interface . Ethernet address).
func IfNameMAC(name string, mac net.HardwareAddr) []byte {
	var ether [8]byte // 6 bytes and padding
	copy(ether[:6], mac)
	return append(IfName(name), ether[:]...)
}

func portField(port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), 0, 0)
}
