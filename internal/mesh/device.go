// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// device makes the kernel's device equal to d and returns its index. If the kernel cannot change
// a property that differs, device replaces the link.
func (m *Mesh) device(s State, d Device) (int, error) {
	link, err := m.conn.Link(d.Name)
	if err == nil && !ours(link, s.mark(), d) {
		return 0, fmt.Errorf("make link %s: a link of this name exists and is not ours", d.Name)
	}
	if err == nil && !d.fits(link) {
		if err := m.conn.LinkDel(link); err != nil && !nl.IsNotFound(err) {
			return 0, fmt.Errorf("replace link %s: %w", d.Name, err)
		}
		link, err = m.create(d)
	} else if nl.IsNotFound(err) {
		link, err = m.create(d)
	}
	if err != nil {
		return 0, fmt.Errorf("make link %s: %w", d.Name, err)
	}
	if err := m.adjust(link.(*netlink.Vxlan), s.mark(), d); err != nil {
		return 0, fmt.Errorf("set up link %s: %w", d.Name, err)
	}
	return link.Attrs().Index, nil
}

// ours reports whether a link belongs to the mesh. The link's alias shows this. A link that is
// down and has our parameters is ours too: an agent was killed before it set the alias.
func ours(link netlink.Link, k mark, d Device) bool {
	at := link.Attrs()
	return at.Alias == k.alias() || at.Alias == "" && at.Flags&net.FlagUp == 0 && d.fits(link)
}

// fits reports whether the kernel can change all properties in which a link differs from d.
func (d Device) fits(link netlink.Link) bool {
	vx, ok := link.(*netlink.Vxlan)
	return ok && vx.VxlanId == int(d.VNI) && vx.Port == int(d.Port) && !vx.Learning && !vx.FlowBased && !vx.GBP &&
		vx.VtepDevIndex == 0 && vx.UDPCSum && nl.AddrOf(vx.SrcAddr).Is4() == d.Local.Is4() && (len(vx.Group) == 0 || vx.Group.IsUnspecified())
}

func (m *Mesh) create(d Device) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = d.Name, d.MTU, d.MAC
	err := m.conn.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(d.VNI), Port: int(d.Port), SrcAddr: d.Local.AsSlice(), UDPCSum: true, NoAge: true,
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("%w (this kernel has no VXLAN; hosts on one link can use transport %q)", err, Routes)
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("%w (another link has VNI %d on port %d)", err, d.VNI, d.Port)
	case err != nil:
		return nil, err
	}
	return m.conn.Link(d.Name)
}

// adjust changes what differs. Packets continue to pass.
func (m *Mesh) adjust(vx *netlink.Vxlan, k mark, d Device) error {
	at := vx.Attrs()
	var change nl.LinkChange
	if alias := k.alias(); at.Alias != alias {
		change.Alias = &alias
	}
	if !bytes.Equal(at.HardwareAddr, d.MAC) {
		change.MAC = d.MAC
	}
	if at.MTU != d.MTU {
		change.MTU = d.MTU
	}
	if change.Alias != nil || change.MAC != nil || change.MTU != 0 {
		if err := m.conn.SetLink(at.Index, change); err != nil {
			return err
		}
	}
	if nl.AddrOf(vx.SrcAddr) != d.Local {
		if err := m.conn.SetVXLANLocal(at.Index, d.Local); err != nil {
			return fmt.Errorf("change its address to %s: %w", d.Local, err)
		}
	}
	if err := m.sysctls(d.Name, d.NoIPv6); err != nil { // before the device is up, so that the kernel gives it no address
		return err
	}
	if at.Flags&net.FlagUp == 0 {
		if err := m.conn.SetLink(at.Index, nl.LinkChange{Up: true}); err != nil {
			return err
		}
	}
	return errors.Join(m.sources(vx, d), m.loose(vx, d), m.local(vx, d))
}

// local gives the device its link-local address, and removes the address of an earlier MAC. The
// address answers the tests of other hosts (offload.go).
func (m *Mesh) local(vx *netlink.Vxlan, d Device) error {
	if d.NoIPv6 {
		return nil
	}
	want := netip.PrefixFrom(NextHop(d.MAC), 64)
	have, err := m.conn.AddrList(vx, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range have {
		if p := nl.PrefixOf(a.IPNet); p == want {
			return nil
		} else if p.Addr().IsLinkLocalUnicast() {
			err = errors.Join(err, m.conn.AddrDel(vx, &a))
		}
	}
	return errors.Join(err, m.conn.AddrAdd(vx, &netlink.Addr{IPNet: nl.IPNet(want), Flags: unix.IFA_F_NODAD}))
}

// looseAddr is an IPv4 address that every device without one of its own has. Nothing is sent to it.
func looseAddr() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 112, 98}) }

// wantsLoose reports whether the device needs this address. On a device without any IPv4 address, a loose
// rp_filter acts as a strict one (__fib_validate_source): it drops each packet from the tunnel whose source is
// behind another link. An example is a packet of another network's container, which its host masquerades.
func (d Device) wantsLoose() bool { return !slices.ContainsFunc(d.Sources, netip.Addr.Is4) }

// loose gives the device that address. It has the scope of a link, so masquerade and programs do not take it as
// source.
func (m *Mesh) loose(vx *netlink.Vxlan, d Device) error {
	have, err := m.conn.AddrList(vx, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	a := netip.PrefixFrom(looseAddr(), 32)
	i := slices.IndexFunc(have, func(x netlink.Addr) bool { return nl.PrefixOf(x.IPNet) == a })
	switch {
	case d.wantsLoose() && i < 0:
		err = m.conn.AddrAdd(vx, &netlink.Addr{IPNet: nl.IPNet(a), Scope: int(netlink.SCOPE_LINK)})
	case !d.wantsLoose() && i >= 0:
		err = m.conn.AddrDel(vx, &have[i])
	}
	if err != nil {
		return fmt.Errorf("address %s: %w", a, err)
	}
	return nil
}

// sysctls sets rp_filter to loose. Packets may arrive through the tunnel although the answers
// take a route, and a strict filter would drop such packets. The device gets no IPv6 address
// from the kernel and must not accept router advertisements.
func (m *Mesh) sysctls(device string, noIPv6 bool) error {
	list := []nl.Setting{{Key: "net/ipv4/conf/" + device + "/rp_filter", Value: "2"}}
	if !noIPv6 {
		v6 := "net/ipv6/conf/" + device + "/"
		list = append(list, nl.Setting{Key: v6 + "addr_gen_mode", Value: "1"}, nl.Setting{Key: v6 + "accept_ra", Value: "0"},
			nl.Setting{Key: v6 + "accept_dad", Value: "0"}, nl.Setting{Key: v6 + "disable_ipv6", Value: "0"})
	}
	_, err := m.conn.SwapSysctls(list, func(_ nl.Setting, err error) error {
		if errors.Is(err, nl.ErrReadOnly) || errors.Is(err, fs.ErrPermission) {
			m.opts.Warn(err)
			return nil
		}
		return err
	})
	return err
}

// placed is an existing device with the entries that it had before this Sync.
type placed struct {
	Device
	index int
	fdb   []nl.FDBEntry
	hops  map[netip.Addr]net.HardwareAddr
}

// place makes the kernel's device equal to d and reads its entries.
func (m *Mesh) place(s State, d Device) (p placed, err error) {
	p.Device = d
	if p.index, err = m.device(s, d); err != nil {
		return p, err
	}
	if p.fdb, err = m.conn.FDB(p.index); err != nil {
		return p, err
	}
	p.hops, err = m.neighbours(p.index)
	return p, err
}

// tunnels adds the entries for every peer.
func (m *Mesh) tunnels(p placed) error {
	var errs []error
	for _, t := range p.Tunnels {
		if e := p.entry(t); !slices.ContainsFunc(p.fdb, func(have nl.FDBEntry) bool {
			return bytes.Equal(have.MAC, e.MAC) && have.Remote == e.Remote && have.Port == e.Port
		}) {
			if err := m.conn.SetFDB(p.index, e); err != nil {
				errs = append(errs, fmt.Errorf("set tunnel of %s to %s: %w", t.MAC, t.Remote, err))
			}
		}
		for _, h := range t.Hops {
			if bytes.Equal(p.hops[h], t.MAC) {
				continue
			}
			if err := m.conn.NeighSet(neighbour(p.index, h, t.MAC)); err != nil {
				errs = append(errs, fmt.Errorf("set neighbour %s on %s: %w", h, p.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// entry returns the entry for a peer. If the peer uses the device's own port, the entry has no
// port, as in the kernel.
func (d Device) entry(t Tunnel) nl.FDBEntry {
	e := nl.FDBEntry{MAC: t.MAC, Remote: t.Remote, Port: t.Port}
	if t.Port == d.Port {
		e.Port = 0
	}
	return e
}

// prune removes entries that belong to no peer. The device is ours, so all its entries are ours.
// prune looks only at the entries that existed before this Sync, because this Sync has changed
// only entries of peers, and these stay.
func (m *Mesh) prune(p placed) error {
	var errs []error
	for _, e := range p.fdb {
		if slices.ContainsFunc(p.Tunnels, func(t Tunnel) bool { return bytes.Equal(t.MAC, e.MAC) }) {
			continue
		}
		if err := m.conn.DeleteFDB(p.index, e); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove tunnel of %s: %w", e.MAC, err))
		}
	}
	for h, mac := range p.hops {
		if slices.ContainsFunc(p.Tunnels, func(t Tunnel) bool { return slices.Contains(t.Hops, h) }) {
			continue
		}
		if err := m.conn.NeighDel(neighbour(p.index, h, mac)); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove neighbour %s: %w", h, err))
		}
	}
	return errors.Join(errs...)
}

// neighbours returns the permanent neighbours of a link.
func (m *Mesh) neighbours(index int) (map[netip.Addr]net.HardwareAddr, error) {
	out := make(map[netip.Addr]net.HardwareAddr)
	for _, family := range [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := m.conn.NeighList(index, family)
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range list {
			if n.State&netlink.NUD_PERMANENT != 0 {
				out[nl.AddrOf(n.IP)] = n.HardwareAddr
			}
		}
	}
	return out, nil
}

func neighbour(index int, hop netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	family := netlink.FAMILY_V6
	if hop.Is4() {
		family = netlink.FAMILY_V4
	}
	return &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: hop.AsSlice(), HardwareAddr: mac}
}

// dropDevices removes links of the mesh that the state does not want. wanted has their names.
func (m *Mesh) dropDevices(k mark, wanted []string) error {
	links, err := m.conn.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, l := range links {
		at := l.Attrs()
		if at.Alias != k.alias() || slices.Contains(wanted, at.Name) {
			continue
		}
		if err := m.conn.LinkDel(l); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove link %s: %w", at.Name, err))
		}
	}
	return errors.Join(errs...)
}

// borrowed returns the blocks for which an address of another program becomes the source of
// routes. If Self has addresses of its own, there are none.
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

// checkSources refuses an address outside the host's own blocks, and two addresses of one family.
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

// sources puts the device's addresses on the device. The device is ours, so sources removes all
// others.
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
