// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// tidy takes from the bridges what no container needs any more: the addresses of
// blocks that are no longer this host's, and bridges of networks that are no more
// once the last container has left. The plugin bridge leaves both, as it cannot
// know.
func (a *Agent) tidy(w *world, parts []part) error {
	conn, err := nl.Host(a.opts.Paths.Proc)
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	for i := range parts {
		a.mirror.bridged(parts[i].Network.Name, true)
		errs = append(errs, a.tidyAddrs(conn, &parts[i]))
	}
	for _, network := range w.Bridges {
		if slices.ContainsFunc(parts, func(p part) bool { return p.Network.Name == network }) {
			continue
		}
		gone, err := dropBridge(conn, bridgeName(network))
		if errs = append(errs, err); gone {
			a.mirror.bridged(network, false)
		}
	}
	return errors.Join(errs...)
}

// tidyAddrs removes a network's addresses from its bridge that are not those of
// its blocks.
func (a *Agent) tidyAddrs(conn *nl.Conn, p *part) error {
	link, err := conn.Link(bridgeName(p.Network.Name))
	if nl.IsNotFound(err) {
		return nil // no container was ever here
	}
	if err != nil {
		return err
	}
	addrs, err := conn.Addrs(link.Attrs().Index)
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range addrs {
		block := at.Prefix.Masked()
		theirs := !slices.ContainsFunc(p.Network.Subnets, func(s netip.Prefix) bool { return s.Contains(block.Addr()) })
		if theirs || slices.Contains(p.Blocks, block) {
			continue
		}
		used, err := a.used(p.Network.Name, []netip.Prefix{block})
		if errs = append(errs, err); err != nil || used > 0 {
			continue
		}
		a.opts.Log("network %s: taking address %s from %s", p.Network.Name, at.Prefix, link.Attrs().Name)
		if err := conn.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(at.Prefix)}); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("take address %s from %s: %w", at.Prefix, link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// dropBridge removes a bridge that nobody is on; gone when there is none.
func dropBridge(conn *nl.Conn, name string) (gone bool, err error) {
	link, err := conn.Link(name)
	if nl.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if link.Type() != "bridge" {
		return true, nil // somebody else's
	}
	links, err := conn.LinkList()
	if err != nil {
		return false, fmt.Errorf("list links: %w", err)
	}
	if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == link.Attrs().Index }) {
		return false, nil
	}
	if err := conn.LinkDel(link); err != nil && !nl.IsNotFound(err) {
		return false, fmt.Errorf("remove %s: %w", name, err)
	}
	return true, nil
}
