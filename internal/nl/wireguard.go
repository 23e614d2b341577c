// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WireKey is a WireGuard key (Curve25519).
type WireKey [32]byte

// String returns the key as wg(8) writes it, or "" for a zero key.
func (k WireKey) String() string {
	if k == (WireKey{}) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k[:])
}

// WireDevice is a WireGuard device without its private key.
type WireDevice struct {
	Key   WireKey // public key
	Port  uint16  // UDP port
	Peers []WirePeer
}

// WirePeer is a peer of a WireGuard device.
type WirePeer struct {
	Key      WireKey // public key
	Endpoint netip.AddrPort
	Allowed  []netip.Prefix // packets to these prefixes go to this peer, which may also send packets from them
}

// WireGuard is a generic-netlink socket to the kernel's WireGuard.
type WireGuard struct {
	raw    *socket
	family int
}

// These numbers are from linux/genetlink.h and linux/wireguard.h.
const (
	genlController  = 0x10
	genlGetFamily   = 3
	genlFamilyID    = 1
	genlFamilyName  = 2
	wireGet         = 0
	wireSet         = 1
	wireIndex       = 1
	wirePrivate     = 3
	wirePublic      = 4
	wirePort        = 6
	wirePeers       = 8
	wirePeerKey     = 1
	wirePeerFlags   = 3
	wirePeerAddr    = 4
	wirePeerAllowed = 9
	wireAllowedKind = 1
	wireAllowedAddr = 2
	wireAllowedBits = 3

	wirePeerRemove  = 1
	wirePeerReplace = 2 // replace the allowed addresses
)

// ErrNoWireGuard means that the kernel has no WireGuard.
var ErrNoWireGuard = errors.New("this kernel has no WireGuard (Linux 5.6, CONFIG_WIREGUARD; `modprobe wireguard` shows why)")

// WireGuard opens a socket in the namespace of c. If the module is missing, Linux loads it first.
func (c *Conn) WireGuard() (w *WireGuard, err error) {
	w = new(WireGuard)
	if err := c.Do(func() error { w.raw, err = dial(unix.NETLINK_GENERIC); return err }); err != nil {
		return nil, fmt.Errorf("open generic netlink socket: %w", err)
	}
	name := attr(genlFamilyName, vnl.ZeroTerminated("wireguard"))
	msgs, err := w.send(genlController, genlGetFamily, unix.NLM_F_ACK, name)
	if err == nil && len(msgs) == 1 {
		if id := find(msgs[0][min(len(msgs[0]), sizeofGenlHead):], genlFamilyID); len(id) == 2 {
			w.family = int(binary.NativeEndian.Uint16(id))
			return w, nil
		}
	}
	w.Close()
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil, ErrNoWireGuard
	}
	return nil, fmt.Errorf("look for WireGuard: %w", err)
}

// Close closes the socket.
func (w *WireGuard) Close() { w.raw.Close() } //nolint:errcheck // nothing to lose

func (w *WireGuard) send(family int, command uint8, flags int, parts ...vnl.NetlinkRequestData) ([][]byte, error) {
	req := vnl.NewNetlinkRequest(family, flags)
	req.AddData(genlHead(command))
	for _, p := range parts {
		req.AddData(p)
	}
	return w.raw.execute(req, 0)
}

// genlHead is the header of a message (struct genlmsghdr): its command and version 1. The
// library's type would copy two bytes of other memory into the reserved field, so we do not use
// it.
type genlHead uint8

const sizeofGenlHead = 4

// Len implements the library's interface for parts of a message.
func (genlHead) Len() int { return sizeofGenlHead }

// Serialize implements the library's interface for parts of a message.
func (h genlHead) Serialize() []byte { return []byte{byte(h), 1, 0, 0} }

// Device reads the device with an index.
func (w *WireGuard) Device(index int) (d WireDevice, err error) {
	msgs, err := Retry(func() ([][]byte, error) {
		return w.send(w.family, wireGet, unix.NLM_F_DUMP, attr32(wireIndex, uint32(index)))
	})
	if err != nil {
		return d, fmt.Errorf("read WireGuard device %d: %w", index, err)
	}
	for _, m := range msgs {
		d.add(m[min(len(m), sizeofGenlHead):])
	}
	return d, nil
}

// add handles one message. The kernel spreads a device with many peers over several messages,
// and may split one peer.
func (d *WireDevice) add(m []byte) {
	for kind, v := range attributes(m) {
		switch {
		case kind == wirePublic && len(v) == len(d.Key):
			d.Key = WireKey(v)
		case kind == wirePort && len(v) == 2:
			d.Port = binary.NativeEndian.Uint16(v)
		case kind == wirePeers:
			for _, p := range attributes(v) {
				d.addPeer(parseWirePeer(p))
			}
		}
	}
}

func (d *WireDevice) addPeer(p WirePeer) {
	if n := len(d.Peers); n > 0 && d.Peers[n-1].Key == p.Key {
		d.Peers[n-1].Allowed = append(d.Peers[n-1].Allowed, p.Allowed...)
		return
	}
	d.Peers = append(d.Peers, p)
}

func parseWirePeer(b []byte) (p WirePeer) {
	for kind, v := range attributes(b) {
		switch {
		case kind == wirePeerKey && len(v) == len(p.Key):
			p.Key = WireKey(v)
		case kind == wirePeerAddr:
			p.Endpoint = parseSockaddr(v)
		case kind == wirePeerAllowed:
			for _, a := range attributes(v) {
				addr, ok := netip.AddrFromSlice(find(a, wireAllowedAddr))
				if bits := find(a, wireAllowedBits); ok && len(bits) == 1 {
					p.Allowed = append(p.Allowed, netip.PrefixFrom(addr, int(bits[0])))
				}
			}
		}
	}
	return p
}

// parseSockaddr reads a struct sockaddr_in or sockaddr_in6.
func parseSockaddr(b []byte) (a netip.AddrPort) {
	from, to := 4, 8
	if len(b) >= unix.SizeofSockaddrInet6 {
		from, to = 8, 24
	}
	if len(b) < unix.SizeofSockaddrInet4 {
		return a
	}
	addr, _ := netip.AddrFromSlice(b[from:to])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[2:]))
}

func sockaddr(a netip.AddrPort) []byte {
	family, addr, rest := uint16(unix.AF_INET), a.Addr().AsSlice(), make([]byte, 8)
	if a.Addr().Is6() {
		family, addr, rest = unix.AF_INET6, append(make([]byte, 4), addr...), make([]byte, 4)
	}
	b := binary.NativeEndian.AppendUint16(nil, family)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	return append(append(b, addr...), rest...)
}

// SetDevice sets the private key and the port.
func (w *WireGuard) SetDevice(index int, private WireKey, port uint16) error {
	_, err := w.send(w.family, wireSet, unix.NLM_F_ACK, attr32(wireIndex, uint32(index)),
		attr(wirePrivate, private[:]), attr(wirePort, vnl.Uint16Attr(port)))
	return err
}

// SetPeer adds or changes a peer. The kernel takes the peer's allowed addresses from all other
// peers. If replace is set, the peer loses addresses that p does not list.
func (w *WireGuard) SetPeer(index int, p WirePeer, replace bool) error {
	parts := []vnl.NetlinkRequestData{attr(wirePeerAddr, sockaddr(p.Endpoint))}
	if replace {
		parts = append(parts, attr32(wirePeerFlags, wirePeerReplace))
	}
	allowed := attr(wirePeerAllowed|unix.NLA_F_NESTED, nil)
	for _, a := range p.Allowed {
		family := uint16(unix.AF_INET)
		if a.Addr().Is6() {
			family = unix.AF_INET6
		}
		one := allowed.AddRtAttr(unix.NLA_F_NESTED, nil)
		one.AddRtAttr(wireAllowedKind, vnl.Uint16Attr(family))
		one.AddRtAttr(wireAllowedAddr, a.Addr().AsSlice())
		one.AddRtAttr(wireAllowedBits, []byte{byte(a.Bits())})
	}
	return w.setPeer(index, p.Key, append(parts, allowed)...)
}

// DeletePeer removes a peer.
func (w *WireGuard) DeletePeer(index int, key WireKey) error {
	return w.setPeer(index, key, attr32(wirePeerFlags, wirePeerRemove))
}

func (w *WireGuard) setPeer(index int, key WireKey, parts ...vnl.NetlinkRequestData) error {
	peers := attr(wirePeers|unix.NLA_F_NESTED, nil)
	one := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
	one.AddRtAttr(wirePeerKey, key[:])
	for _, p := range parts {
		one.AddChild(p)
	}
	_, err := w.send(w.family, wireSet, unix.NLM_F_ACK, attr32(wireIndex, uint32(index)), peers)
	return err
}
