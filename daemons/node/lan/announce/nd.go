// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// These are parts of an IPv6 header.
const (
	headerLen   = 40
	nextAt      = 6
	hopsAt      = 7
	sourceAt    = 8
	destAt      = 24
	mostHops    = 255 // of neighbour discovery: no router has passed it on
	solicits    = 135
	versionBits = 0x60
)

// solicitationFilter lets neighbour solicitations without extension headers pass, which nobody may send with any (RFC 6980 and practice).
func solicitationFilter(index int) []bpf.Instruction {
	return append(on(index, 7),
		bpf.LoadAbsolute{Off: nextAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6, SkipFalse: 5},
		bpf.LoadAbsolute{Off: hopsAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: mostHops, SkipFalse: 3},
		bpf.LoadAbsolute{Off: headerLen, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: solicits, SkipFalse: 1},
		bpf.RetConstant{Val: maxPacket},
		bpf.RetConstant{},
	)
}

// answerND answers solicitations until the socket is closed. The checksum is not looked at: between links of one machine the kernel does not fill it in.
func (l *line) answerND(context.Context) error {
	return read(l.nd, func(b []byte, from net.HardwareAddr) error {
		if len(b) < headerLen {
			return nil
		}
		m, err := ndp.ParseMessage(b[headerLen:])
		s, ok := m.(*ndp.NeighborSolicitation)
		if err != nil || !ok || !l.Owns(s.TargetAddress) {
			return nil // it is not for us
		}
		mac, err := l.mac()
		if err != nil {
			return err
		}
		l.answered.Add(1)
		source, _ := netip.AddrFromSlice(b[sourceAt:destAt])
		if source.IsUnspecified() { // a host wants the address for itself, and hears only groups (RFC 4861, 7.2.4)
			return l.advertise(s.TargetAddress, netip.IPv6LinkLocalAllNodes(), mac, allNodes(), false)
		}
		return l.advertise(s.TargetAddress, source, mac, from, true)
	})
}

// allNodes is the Ethernet address of ff02::1 (RFC 2464, 7).
func allNodes() net.HardwareAddr { return net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1} }

// sayND sends an unsolicited advertisement (RFC 4861, 7.2.6).
func (l *line) sayND(a netip.Addr, mac net.HardwareAddr) error {
	return l.advertise(a, netip.IPv6LinkLocalAllNodes(), mac, allNodes(), false)
}

// advertise says that an address is here. It replaces what the receivers know.
func (l *line) advertise(a, to netip.Addr, mac, toMAC net.HardwareAddr, asked bool) error {
	body, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{
		Solicited: asked, Override: true, TargetAddress: a,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}},
	}, a, to)
	if err != nil {
		return fmt.Errorf("advertise %s: %w", a, err)
	}
	b := make([]byte, headerLen, headerLen+len(body))
	b[0], b[nextAt], b[hopsAt] = versionBits, unix.IPPROTO_ICMPV6, mostHops
	binary.BigEndian.PutUint16(b[4:], uint16(len(body))) //nolint:gosec // some 32 bytes
	copy(b[sourceAt:], a.AsSlice())
	copy(b[destAt:], to.AsSlice())
	return send(l.nd, append(b, body...), toMAC)
}

// groups are the multicast groups of solicited nodes that a link has joined. Without it the network's card, and a switch that
// follows MLD, would not pass the solicitations on.
type groups struct {
	link   *net.Interface
	conn   net.PacketConn
	joiner *ipv6.PacketConn
	joined map[netip.Addr]bool
}

func openGroups(link *net.Interface) (*groups, error) {
	conn, err := net.ListenPacket("udp6", "[::]:0") // it never reads: the socket only holds the groups
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return &groups{link: link}, nil // a kernel without IPv6
	}
	if err != nil {
		return nil, fmt.Errorf("open a socket for multicast groups: %w", err)
	}
	return &groups{link: link, conn: conn, joiner: ipv6.NewPacketConn(conn), joined: map[netip.Addr]bool{}}, nil
}

func (g *groups) close() {
	if g.conn != nil {
		g.conn.Close() //nolint:errcheck // the kernel leaves the groups
	}
}

// set joins the groups of addresses, and leaves all others.
func (g *groups) set(addrs map[netip.Addr]bool) error {
	if g.conn == nil {
		return nil
	}
	wanted := map[netip.Addr]bool{}
	for a := range addrs {
		if group, err := ndp.SolicitedNodeMulticast(a); err == nil { // an address of IPv4 has none
			wanted[group] = true
		}
	}
	var errs []error
	for group := range wanted {
		if !g.joined[group] {
			errs = append(errs, g.joiner.JoinGroup(g.link, &net.UDPAddr{IP: group.AsSlice()}))
		}
	}
	for group := range g.joined {
		if !wanted[group] {
			errs = append(errs, g.joiner.LeaveGroup(g.link, &net.UDPAddr{IP: group.AsSlice()}))
		}
	}
	g.joined = wanted
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("join multicast groups: %w", err)
	}
	return nil
}
