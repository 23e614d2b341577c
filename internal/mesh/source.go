// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// borrowed returns the blocks in which an address of another program's becomes the source of
// routes: none if Self has addresses of its own.
func (s Self) borrowed() []netip.Prefix {
	if len(s.Sources) > 0 {
		return nil
	}
	return s.Blocks
}

// sourceOf returns the source of packets to a block, if Self has one of its family.
func (s Self) sourceOf(block netip.Prefix) (src netip.Addr) {
	for _, a := range s.Sources {
		if a.Is4() == block.Addr().Is4() {
			return a
		}
	}
	return src
}

// checkSources refuses an address that is not in the host's own blocks, or a second one of a
// family.
func (s Self) checkSources() error {
	for i, a := range s.Sources {
		if !slices.ContainsFunc(s.Blocks, func(b netip.Prefix) bool { return b.Contains(a) }) {
			return fmt.Errorf("source address %v is in none of this host's blocks %v", a, s.Blocks)
		}
		if i > 1 || i == 1 && a.Is4() == s.Sources[0].Is4() {
			return fmt.Errorf("source addresses %v: at most one of each family", s.Sources)
		}
	}
	return nil
}

// sources puts the device's addresses on it, and removes others: the device is ours.
func (m *Mesh) sources(link netlink.Link, d Device) error {
	have, err := m.conn.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var there []netip.Addr
	var errs []error
	for i := range have {
		a := nl.AddrOf(have[i].IP)
		if there = append(there, a); slices.Contains(d.Sources, a) || a.IsLinkLocalUnicast() {
			continue
		}
		if err := m.conn.AddrDel(link, &have[i]); err != nil && !nl.IsNotFound(err) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove address %s: %w", a, err))
		}
	}
	for _, a := range d.Sources {
		if slices.Contains(there, a) || a.Is6() && d.NoIPv6 {
			continue
		}
		whole := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		if err := m.conn.AddrAdd(link, &netlink.Addr{IPNet: whole, Flags: unix.IFA_F_NODAD}); err != nil {
			errs = append(errs, fmt.Errorf("add address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}
