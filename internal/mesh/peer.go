// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"crypto/sha256"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/netstate"
)

// Transport says how packets reach a peer.
type Transport string

// These values are the same as in package store.
const (
	Routes Transport = "routes" // plain routes; the peer must be on the same link
	VXLAN  Transport = "vxlan"
	Auto   Transport = "auto" // routes if the peer is on the same link, else VXLAN; "" means the same

	// WireGuard encrypts. If packets to a peer cannot be encrypted, they are not sent.
	WireGuard Transport = "wireguard"
)

// Peer is another host and the blocks from which it allocates addresses. A list may contain a
// host more than once, for networks with different transports.
type Peer struct {
	ID, Name string
	Underlay []netip.Addr     // at most one of each family
	VTEP     net.HardwareAddr // Ethernet address of the peer's end of the tunnel; nil means VTEP(ID)
	Port     uint16           // UDP port of the peer's end of the tunnel; 0 means Self.Port
	Key      Key              // public key of the peer for WireGuard
	WirePort uint16           // UDP port of the peer's WireGuard device; 0 means Self.WirePort

	Blocks    []netip.Prefix
	Transport Transport
}

// label returns the peer's name for error texts.
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

// Subnet is the range of a whole network, with the blocks of all hosts.
type Subnet struct {
	Network string // for readers of rules and errors
	Prefix  netip.Prefix

	// Isolated stops forwarding between containers of this network and containers of other isolated
	// networks, on any host.
	Isolated bool

	// Block is the prefix length of a host's block. The first address of a block is the host's, not a
	// container's. 0 means that hosts have no address in the network.
	Block int

	// Bridge is the link of this host's containers in the network. Their sources are checked on the way
	// to containers of the mesh's networks. "" means that nothing is checked.
	Bridge string

	// Encrypted makes addresses of the network unreachable, except through routes to peers with
	// WireGuard; other peers are refused. The first peer with WireGuard has the same effect on its network;
	// Encrypted is for a host that knows no such peer yet.
	Encrypted bool

	// Closed drops all packets that arrive for an encrypted network through an uplink or a VXLAN tunnel.
	// Without Closed, only packets with a source in the network are dropped.
	Closed bool
}

// These are the defaults of Self. The port is IANA's port for VXLAN. The VNI is the bytes
// "pb". WireGuard has no port from IANA; this is the port in its documentation.
const (
	DefaultName     = "hosts"
	DefaultDevice   = "patchbay-vx"
	DefaultPort     = 4789
	DefaultVNI      = 0x7062
	DefaultProtocol = netstate.HostsProtocol

	DefaultWireDevice = "patchbay-wg"
	DefaultWirePort   = 51820
)

// Self describes this host. A field with the zero value gets the default above.
type Self struct {
	// Name, Device, VNI and Protocol distinguish the meshes of a host. A second mesh needs
	// another value in each of the four fields, and with WireGuard another WireDevice and
	// WirePort. Device has at most 14 bytes.
	Name     string
	Device   string
	VNI      uint32
	Protocol uint8 // protocol number of our routes (rtm_protocol); 5 to 255

	ID       string           // id by which the peers know this host
	Underlay []netip.Addr     // at most one of each family
	VTEP     net.HardwareAddr // Ethernet address of this end of the tunnel; nil means VTEP(ID)
	Port     uint16           // UDP port of the tunnel
	MTU      int              // MTU of the tunnel in bytes; 0 means the uplink's MTU minus the header

	WireDevice string // name of the WireGuard device
	WirePort   uint16 // UDP port of the WireGuard device

	Subnets []Subnet       // all networks
	Blocks  []netip.Prefix // blocks of this host; a peer that claims one of them is refused

	// Exempt are destinations. Packets from Blocks to them keep their source address, although their
	// attachments are masqueraded. No destination contains another one.
	Exempt []netip.Prefix

	// AnyPort gives masqueraded packets from Blocks a random source port (nft.AnyPort).
	AnyPort bool

	// Sources are addresses of this host in its blocks, at most one of each family. They are on the
	// tunnel's devices, and are the source of packets that the host's own processes send into a
	// tunnel. Without Sources, an address that the host has in its blocks is the source of every
	// route. When the last container with that gateway goes, the address goes too, and the kernel
	// removes these routes.
	Sources []netip.Addr
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
	s.WireDevice, s.WirePort = cmp.Or(s.WireDevice, DefaultWireDevice), cmp.Or(s.WirePort, DefaultWirePort)
	return s
}

// VTEP returns the Ethernet address of a host's end of the tunnel. The address is locally
// administered and depends only on the id.
func VTEP(id string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("patchbay vtep\x00" + id))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// NextHop returns the link-local address derived from an Ethernet address of 6 bytes (modified
// EUI-64, RFC 4291 appendix A).
func NextHop(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

// Overhead returns the number of bytes that a tunnel adds to an inner IP packet. VXLAN adds
// Ethernet 14, VXLAN 8, UDP 8, IP 20 or 40. WireGuard adds header and tag 32, UDP 8, IP 20 or
// 40. The family of the underlay decides the size of the IP header.
func Overhead(t Transport, underlay netip.Addr) int {
	bytes := 70
	if t == WireGuard {
		bytes = 80
	}
	if underlay.Is4() {
		bytes -= 20
	}
	return bytes
}

// ContainerMTU returns the MTU for containers, in bytes. ContainerMTU depends on the uplink's
// MTU, on the host's underlay addresses and on the families of the containers' prefixes. With this
// MTU, packets fit every transport that the network may use. But containers with IPv6 have at least
// 1280. If the tunnel carries less, the host tells them so by ICMP.
func ContainerMTU(uplink int, t Transport, underlay []netip.Addr, prefixes []netip.Prefix) int {
	least, most := 0, 0
	if slices.ContainsFunc(prefixes, func(b netip.Prefix) bool { return b.Addr().Is6() }) {
		least = minMTU
	}
	if t == Routes {
		return max(least, uplink)
	}
	for _, a := range underlay {
		most = max(most, Overhead(t, a))
	}
	return max(least, uplink-most)
}
