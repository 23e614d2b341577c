// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/spec"
)

// validate looks at the host itself. Its values come from a configuration and
// from others by way of a store, so nothing is taken on trust.
func (s Self) validate() error {
	if err := spec.ValidateIfName(s.Device + "6"); err != nil {
		return fmt.Errorf("device %q: %w", s.Device, err)
	}
	if err := spec.ValidateNetworkName(s.Name); err != nil {
		return fmt.Errorf("name %q: %w", s.Name, err)
	}
	if s.VNI >= 1<<24 {
		return fmt.Errorf("VNI %d has more than 24 bits", s.VNI)
	}
	if s.Protocol <= 4 { // unspec, redirect, kernel, boot, static
		return fmt.Errorf("route protocol %d is the system's", s.Protocol)
	}
	if err := checkMAC(s.VTEP); err != nil {
		return err
	}
	if err := s.validateSubnets(); err != nil {
		return err
	}
	return checkUnderlay(s.Underlay)
}

func (s Self) validateSubnets() error {
	for i, a := range s.Subnets {
		p := a.Prefix
		if !p.IsValid() || p.Addr().Is4In6() || p.Bits() == 0 {
			return fmt.Errorf("network %s: %v is no subnet", a.Network, p)
		}
		for _, b := range s.Subnets[:i] {
			if p.Overlaps(b.Prefix) {
				return fmt.Errorf("network %s: %v overlaps %v of network %s", a.Network, p, b.Prefix, b.Network)
			}
		}
	}
	return nil
}

func checkUnderlay(addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return errors.New("no underlay address")
	}
	for i, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast() {
			return fmt.Errorf("underlay address %v is no address of one host", a)
		}
		if i > 1 || i == 1 && a.Is4() == addrs[0].Is4() {
			return fmt.Errorf("underlay addresses %v: at most one of each family", addrs)
		}
	}
	return nil
}

// within is the network that an underlay address lies in: outer packets to it
// would be sent into the tunnel they come from.
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

// apart leaves out networks that this host's own underlay addresses lie in: they
// cannot work here, and the others can.
func (c *compiler) apart() {
	var kept []Subnet
	for _, n := range c.self.Subnets {
		if err := within(c.self.Underlay, []Subnet{n}); err != nil {
			c.errs = append(c.errs, fmt.Errorf("network %s is left out: %w", n.Network, err))
			c.left = append(c.left, n.Prefix)
			continue
		}
		kept = append(kept, n)
	}
	c.self.Subnets = kept
}

func checkMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return fmt.Errorf("VTEP %q is no Ethernet address of one host", mac)
	}
	return nil
}

// check looks at a peer but for its blocks.
func (c *compiler) check(p Peer) error {
	switch p.Transport {
	case "", Auto, Routes, VXLAN:
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
	if id, taken := c.macs[mac]; taken && id != p.ID {
		return fmt.Errorf("VTEP %s is that of peer %s: do two hosts have one id?", mac, id)
	}
	c.macs[mac] = p.ID
	return nil
}

// checkBlock keeps a peer from claiming what is not its own.
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
	for _, u := range c.used {
		if u.block.Overlaps(block) {
			return fmt.Errorf("block %v overlaps %v of peer %s", block, u.block, u.peer)
		}
	}
	return nil
}
