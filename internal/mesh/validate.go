// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/spec"
)

// validate checks the description of this host. validate trusts no value, because values come
// from a configuration and, through a store, from other hosts.
func (s Self) validate() error {
	if err := spec.ValidateIfName(s.Device + "6"); err != nil {
		return fmt.Errorf("device %q: %w", s.Device, err)
	}
	if err := spec.ValidateIfName(s.WireDevice); err != nil {
		return fmt.Errorf("device %q: %w", s.WireDevice, err)
	}
	if err := spec.ValidateNetworkName(s.Name); err != nil {
		return fmt.Errorf("name %q: %w", s.Name, err)
	}
	if s.VNI >= 1<<24 {
		return fmt.Errorf("VNI %d has more than 24 bits", s.VNI)
	}
	if s.Protocol <= 4 { // 0 to 4 are unspec, redirect, kernel, boot and static
		return fmt.Errorf("route protocol %d is the system's", s.Protocol)
	}
	if err := checkMAC(s.VTEP); err != nil {
		return err
	}
	if err := s.checkSources(); err != nil {
		return err
	}
	return checkUnderlay(s.Underlay)
}

// reserved returns ranges that no network may overlap. Routes for them would catch the host's
// own packets, or all packets.
func reserved() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{}), 8),                  // this network, and the default route
		netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8),               // loopback
		netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254}), 16),         // link-local, and the metadata of clouds
		netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4),               // multicast
		netip.PrefixFrom(netip.IPv6Unspecified(), 96),                    // ::1, and the default route
		netip.PrefixFrom(netip.AddrFrom16([16]byte{10: 0xff, 0xff}), 96), // IPv4 in IPv6
		prefix.LinkLocal(), // link-local
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8), // multicast
	}
}

// CheckSubnet returns an error if no network can have this range.
func CheckSubnet(p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() {
		return fmt.Errorf("%v is not a subnet", p)
	}
	for _, r := range reserved() {
		if p.Overlaps(r) {
			return fmt.Errorf("%v cannot be a subnet for containers: it overlaps %v", p, r)
		}
	}
	return nil
}

func checkUnderlay(addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return errors.New("no underlay address")
	}
	for i, a := range addrs {
		if !prefix.IsHost(a) {
			return fmt.Errorf("underlay address %v is not an address of one host", a)
		}
		if i > 1 || i == 1 && a.Is4() == addrs[0].Is4() {
			return fmt.Errorf("underlay addresses %v: at most one of each family", addrs)
		}
	}
	return nil
}

// within returns an error if an underlay address is inside a network, because outer packets to
// it would go into the same tunnel again.
func within(addrs []netip.Addr, subnets []Subnet) error {
	for _, a := range addrs {
		for _, n := range subnets {
			if n.Prefix.Contains(a) {
				return fmt.Errorf("underlay address %v lies within %v of network %s", a, n.Prefix, n.Network)
			}
		}
	}
	return nil
}

// apart leaves out networks with a range that no host can use. apart also leaves out networks
// that contain an underlay address of this host, because they cannot work here; the other
// networks can. If two networks overlap, it returns an error, because it is not clear to which
// network a block belongs.
func (c *compiler) apart() error {
	var kept []Subnet
	for _, n := range c.self.Subnets {
		err := CheckSubnet(n.Prefix)
		if err == nil {
			for _, other := range kept {
				if n.Prefix.Overlaps(other.Prefix) {
					return fmt.Errorf("network %s: %v overlaps %v of network %s", n.Network, n.Prefix, other.Prefix, other.Network)
				}
			}
			if err = within(c.self.Underlay, []Subnet{n}); err != nil {
				c.excluded = append(c.excluded, n.Prefix)
			}
		}
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("network %s is left out: %w", n.Network, err))
			continue
		}
		kept = append(kept, n)
	}
	c.self.Subnets = kept
	return nil
}

func checkMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return fmt.Errorf("VTEP %q is not an Ethernet address of one host", mac)
	}
	return nil
}

// check checks a peer, except its blocks.
func (c *compiler) check(p Peer) error {
	switch p.Transport {
	case "", Auto, Routes, VXLAN, WireGuard:
	default:
		return fmt.Errorf("unknown transport %q", p.Transport)
	}
	if err := checkUnderlay(p.Underlay); err != nil {
		return err
	}
	if err := within(p.Underlay, c.self.Subnets); err != nil {
		return err
	}
	for _, a := range p.Underlay {
		if slices.Contains(c.self.Underlay, a) {
			return fmt.Errorf("underlay address %v is this host's own", a)
		}
	}
	mac := p.vtep().String()
	if err := checkMAC(p.vtep()); err != nil {
		return err
	}
	if mac == c.self.VTEP.String() {
		return fmt.Errorf("VTEP %s is this host's own: do two hosts have one id?", mac)
	}
	if id, used := c.macs[mac]; used && id != p.ID {
		return fmt.Errorf("VTEP %s is that of peer %s: do two hosts have one id?", mac, id)
	}
	c.macs[mac] = p.ID
	return nil
}

// checkBlock returns an error if a block does not belong to the peer.
func (c *compiler) checkBlock(block netip.Prefix) error {
	holds := func(s Subnet) bool {
		return block.IsValid() && s.Prefix.Overlaps(block) && s.Prefix.Bits() <= block.Bits()
	}
	if !slices.ContainsFunc(c.self.Subnets, holds) {
		return fmt.Errorf("block %v lies in none of the networks", block)
	}
	for _, b := range c.self.Blocks {
		if b.Overlaps(block) {
			return fmt.Errorf("block %v overlaps %v of this host", block, b)
		}
	}
	return c.used.overlap(block)
}
