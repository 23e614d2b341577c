// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/hosts/store"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// uplinkAddrs returns the underlay addresses of a host for which the user has configured none.
// For each family it returns the first global address of the link with the default route.
func uplinkAddrs(proc string) (out []netip.Addr, err error) {
	conn, err := nl.Host(proc)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		link, err := conn.DefaultLink(family, false) // a default route that rejects packets counts too, because the host uses it
		if err != nil {
			return nil, fmt.Errorf("find default route: %w", err)
		}
		if link == 0 {
			continue
		}
		addr, err := globalAddr(conn, link, family)
		if err != nil {
			return nil, err
		}
		if addr.IsValid() {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no interface has a default route and an address: set the address where other hosts reach this one with --address")
	}
	return out, nil
}

// globalAddr returns the first address of a link that other hosts can use and that does not
// expire. It ignores link-local, temporary and deprecated addresses.
func globalAddr(conn *nl.Conn, index, family int) (netip.Addr, error) {
	addrs, err := conn.Addrs(index)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		addr := a.Prefix.Addr()
		if addr.Is4() == (family == netlink.FAMILY_V4) && addr.IsGlobalUnicast() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE) == 0 {
			return addr, nil
		}
	}
	return netip.Addr{}, nil
}

// begun reports whether this host holds, or held, a block of a subnet in the size that the
// network now uses. Then its containers may have addresses of that block.
func (w *world) begun(n *store.Network, subnet netip.Prefix, self string) bool {
	return slices.ContainsFunc(slices.Concat(w.Own[n.Name], w.Given[n.Name]), func(b netip.Prefix) bool { return fits(n, subnet, b) }) ||
		slices.ContainsFunc(w.Blocks, func(b store.Block) bool { return b.Network == n.Name && b.Node == self && fits(n, subnet, b.Prefix) })
}

// inTheWay returns an error if a network is new on this host and overlaps one of the host's
// addresses: the bridge would take packets that are for other hosts. A network that already has
// a block here continues. If it was created again with other subnets, those count as new.
func (a *Agent) inTheWay(w *world, n *store.Network) error {
	fresh := slices.DeleteFunc(slices.Clone(n.Subnets), func(s netip.Prefix) bool { return w.begun(n, s, a.self) })
	if len(fresh) == 0 {
		return nil
	}
	b, err := openBridges(a.links, a.opts.Paths, w, a.opts.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	defer b.close()
	addrs, err := b.conn.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("%w: list addresses: %w", errUnread, err)
	}
	for _, at := range addrs {
		p := nl.PrefixOf(at.IPNet)
		i := slices.IndexFunc(fresh, p.Masked().Overlaps)
		if i < 0 {
			continue
		}
		link, err := b.conn.LinkAt(at.LinkIndex)
		if err == nil && !(link.Attrs().Name == bridgeName(n.Name) && b.gave(n, link, p)) {
			return fmt.Errorf("subnet %s overlaps %s, an address of this host on %s: the host does not take part in this network", fresh[i], p, link.Attrs().Name)
		}
	}
	return nil
}
