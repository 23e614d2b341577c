// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// State is the desired state of this host.
type State struct {
	Name     string
	Protocol uint8
	Devices  []Device // at most one per family of the underlay
	Wire     *Wire    // nil if no peer uses WireGuard
	Routes   []Route
	Subnets  []Subnet
	Uplinks  []string // links to other hosts
	Exempt   []Exemption
	AnyPort  []netip.Prefix // masqueraded packets from them get random source ports
	Directs  []direct       // direct routes that Probe tests
	Detoured []string       // peers on the same link that only the tunnel reaches
	Ends     []netip.Addr   // the peers' underlay addresses in use; Probe probes the paths to them
	Port     uint16         // of tunnels
	VNI      uint32         // of tunnels
	Senders  []Sender       // who may send into this host's tunnel
	Underlay []netip.Addr   // this host's end
}

// Sender is a peer that may send packets into this host's tunnel.
type Sender struct {
	Peer     string // for people
	Underlay []netip.Addr
	Inside   []netip.Prefix // its own addresses: its blocks, and the address of its device
	Tunnels  bool           // one of its networks may use tunnels
	Port     uint16         // of its end of the tunnel
}

// Exemption is a pair of ranges. Masqueraded packets from one to the other keep their source address.
type Exemption struct{ From, To netip.Prefix }

// Device is this host's end of the tunnel.
type Device struct {
	Name    string
	VNI     uint32
	Port    uint16
	Local   netip.Addr // underlay address
	MAC     net.HardwareAddr
	MTU     int  // bytes
	NoIPv6  bool // the kernel has no IPv6, or the MTU is too small for it
	Sources []netip.Addr
	Tunnels []Tunnel
	Spare   bool // no route uses it: it has the Sources, and receives packets of peers
}

// Tunnel has the device's entries for one peer.
type Tunnel struct {
	MAC    net.HardwareAddr
	Remote netip.Addr   // underlay address of the peer
	Port   uint16       // UDP port of the peer
	Hops   []netip.Addr // next hops of routes; they are neighbours with this MAC
}

// Route is a route to one block of a peer.
type Route struct {
	Dst    netip.Prefix
	Via    netip.Addr // may be IPv4 or IPv6
	Link   string
	OnLink bool // Via is on the link, but no other route tells the kernel so
	// Src is the source address for programs on this host. Src is the host's address in the
	// network, if it has one. If the programs used the underlay address, their packets would
	// arrive at the other host from outside the network, and a FORWARD policy would drop them
	// there.
	Src netip.Addr

	// Refused is a route for a whole range, which sends packets nowhere. Refused has no Via and
	// no Link.
	Refused bool

	// Metric is the route's priority; 0 means the usual one.
	Metric int

	// MTU is the path MTU in bytes, less the tunnel's header. 0 means that the path carries as
	// much as the link. If Probe has not found it yet, KeepMTU is set, and an existing route
	// keeps its MTU: a new agent must not make packets too long for the path.
	MTU     int
	KeepMTU bool
}

// String returns the state as commands of ip(8), bridge(8) and nft(8), one object per line.
func (s State) String() string {
	var b strings.Builder
	for _, x := range s.Subnets {
		fmt.Fprintf(&b, "forward %s; accept it where FORWARD drops # %s\n", x.Prefix, x.Network)
	}
	for _, x := range divided(s.Subnets) {
		fmt.Fprintf(&b, "drop ip saddr %s ip daddr %s\n", x.From, x.To)
	}
	for _, x := range s.Exempt {
		fmt.Fprintf(&b, "do not masquerade ip saddr %s ip daddr %s\n", x.From, x.To)
	}
	for _, p := range s.AnyPort {
		fmt.Fprintf(&b, "masquerade ip saddr %s with random source ports\n", p)
	}
	for _, d := range s.Devices {
		b.WriteString(d.String())
	}
	b.WriteString(s.guarded())
	if s.Wire != nil {
		b.WriteString(s.Wire.String())
	}
	for _, p := range s.encrypted() {
		fmt.Fprintf(&b, "drop what comes from %s through a link that does not lead there\n", p)
	}
	plain := s.plain()
	for _, p := range plain.To {
		fmt.Fprintf(&b, "drop what comes for %s through %s\n", p, strings.Join(plain.Links, ", "))
	}
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "%s proto %d\n", r, s.Protocol)
	}
	return b.String()
}

// guarded returns the rules about sending into tunnels.
func (s State) guarded() string {
	if len(s.Devices) == 0 && len(s.Senders) > 0 {
		return fmt.Sprintf("drop what containers send into the tunnels of other hosts, vxlan id %d dstport %d\n", s.VNI, s.Port)
	}
	var b strings.Builder
	for _, x := range s.Senders {
		fmt.Fprintf(&b, "let %v send from %v into the tunnel # %s\n", x.Underlay, x.Inside, x.Peer)
	}
	return b.String()
}

// String returns the commands for the device and its peers.
func (d Device) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ip link add %s mtu %d address %s type vxlan id %d local %s dstport %d nolearning udpcsum\n",
		d.Name, d.MTU, d.MAC, d.VNI, d.Local, d.Port)
	for _, a := range d.Sources {
		fmt.Fprintf(&b, "ip addr add %s dev %s\n", a, d.Name)
	}
	if d.wantsLoose() {
		fmt.Fprintf(&b, "ip address add %s dev %s scope link\n", looseAddr(), d.Name)
	}
	if !d.NoIPv6 {
		fmt.Fprintf(&b, "ip address add %s/64 dev %s nodad\n", NextHop(d.MAC), d.Name)
	}
	for _, t := range d.Tunnels {
		fmt.Fprintf(&b, "bridge fdb replace %s dev %s dst %s", t.MAC, d.Name, t.Remote)
		if t.Port != d.Port {
			fmt.Fprintf(&b, " port %d", t.Port)
		}
		b.WriteString(" self permanent\n")
		for _, h := range t.Hops {
			fmt.Fprintf(&b, "ip neigh replace %s lladdr %s dev %s nud permanent\n", h, t.MAC, d.Name)
		}
	}
	return b.String()
}

// String returns the ip command.
func (r Route) String() string {
	if r.Refused {
		return fmt.Sprintf("ip route replace unreachable %s", r.Dst)
	}
	s := "ip route replace " + r.Dst.String()
	switch {
	case r.Dst.Addr().Is4() && r.Via.Is6():
		s += " via inet6 " + r.Via.String()
	case r.Via.IsValid():
		s += " via " + r.Via.String()
	}
	s += " dev " + r.Link
	if r.OnLink {
		s += " onlink"
	}
	if r.Src.IsValid() {
		s += " src " + r.Src.String()
	}
	if r.Metric > 0 {
		s += fmt.Sprintf(" metric %d", r.Metric)
	}
	if r.MTU > 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	return s
}
