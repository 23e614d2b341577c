// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"crypto/sha256"
	"net"
	"net/netip"
)

// Transport is the way packets reach a peer.
type Transport string

// The transports. The values are those of package store.
const (
	Routes Transport = "routes" // plain routes; the peer is on the same link
	VXLAN  Transport = "vxlan"
	Auto   Transport = "auto" // routes if the peer is on the same link, else VXLAN; "" too
)

// Peer is another host with the blocks that it allocates addresses from. A list may have a
// host more than once, for networks with different transports.
type Peer struct {
	ID, Name string
	Underlay []netip.Addr     // at most one of each family
	VTEP     net.HardwareAddr // of its end of the tunnel; nil: VTEP(ID)
	Port     uint16           // UDP, of its end of the tunnel; 0: Self.Port

	Blocks    []netip.Prefix
	Transport Transport
}

// label is the peer's name in errors.
func (p Peer) label() string {
	switch {
	case p.Name == "" || p.Name == p.ID:
		return p.ID
	case p.ID == "":
		return p.Name
	}
	return p.Name + " (" + p.ID + ")"
}

func (p Peer) vtep() net.HardwareAddr {
	if len(p.VTEP) == 0 {
		return VTEP(p.ID)
	}
	return p.VTEP
}

// Subnet is the range of a whole network: that of all hosts together.
type Subnet struct {
	Network string // for readers of rules and errors
	Prefix  netip.Prefix

	// Masquerade translates the source of what leaves the range to the host's address. It
	// is for attachments without a masquerade of their own, from the configuration of an
	// earlier release.
	Masquerade bool

	// Unsettled keeps such a masquerade if it exists: an ADD with that configuration may
	// still run. If it is false, the masquerade goes with the last attachment that needs
	// it.
	Unsettled bool
}

// The defaults of Self. The port is IANA's for VXLAN; the VNI is "pb".
const (
	DefaultName     = "hosts"
	DefaultDevice   = "patchbay-vx"
	DefaultPort     = 4789
	DefaultVNI      = 0x7062
	DefaultProtocol = 112
)

// Self is the host itself. The zero values mean the defaults above.
type Self struct {
	// Name, Device, VNI and Protocol distinguish the meshes of one host: a second mesh
	// needs four of its own. Device has 14 bytes at most.
	Name     string
	Device   string
	VNI      uint32
	Protocol uint8 // of our routes (rtm_protocol); 5 to 255

	ID       string           // as the peers know it
	Underlay []netip.Addr     // at most one of each family
	VTEP     net.HardwareAddr // nil: VTEP(ID)
	Port     uint16           // UDP, of the tunnel
	MTU      int              // bytes, of the tunnel; 0: that of the uplink less the header

	Subnets []Subnet       // all networks
	Blocks  []netip.Prefix // this host's; a peer that claims one is refused
}

func (s Self) withDefaults() Self {
	if s.Name == "" {
		s.Name = DefaultName
	}
	if s.Device == "" {
		s.Device = DefaultDevice
	}
	if s.VNI == 0 {
		s.VNI = DefaultVNI
	}
	if s.Protocol == 0 {
		s.Protocol = DefaultProtocol
	}
	if s.Port == 0 {
		s.Port = DefaultPort
	}
	if len(s.VTEP) == 0 {
		s.VTEP = VTEP(s.ID)
	}
	return s
}

// VTEP returns the Ethernet address of a host's end of the tunnel: locally administered,
// and always the same for an id.
func VTEP(id string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("patchbay vtep\x00" + id))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// NextHop returns the link-local address derived from an Ethernet address of 6 bytes
// (modified EUI-64, RFC 4291 appendix A).
func NextHop(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

// Overhead returns the bytes that VXLAN adds before an inner IP packet over an underlay of
// a family: Ethernet 14, VXLAN 8, UDP 8, IP 20 or 40.
func Overhead(underlay netip.Addr) int {
	if underlay.Is4() {
		return 50
	}
	return 70
}

// ContainerMTU returns the MTU for containers, in bytes, from the uplink's MTU and the
// host's underlay addresses: no packet is too long for any transport that the network may
// use.
func ContainerMTU(uplink int, t Transport, underlay []netip.Addr) int {
	if t == Routes {
		return uplink
	}
	most := 0
	for _, a := range underlay {
		most = max(most, Overhead(a))
	}
	return uplink - most
}
