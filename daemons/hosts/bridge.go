// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// bridges holds the networks' bridges on this host. Another program may have created a bridge of
// the same name, or added an address to ours. A bridge is ours if the plugin bridge wrote a note
// that it made the bridge. An address is ours if it belongs to a block that this host has held.
type bridges struct {
	conn  links
	notes *record.Dir
	had   func(network string) []netip.Prefix
	log   func(format string, args ...any)
}

// links is the part of *nl.Conn that handles the links of this host and their addresses.
type links interface {
	Link(name string) (netlink.Link, error)
	LinkAt(index int) (netlink.Link, error)
	LinkList() ([]netlink.Link, error)
	LinkDel(link netlink.Link) error
	Addrs(index int) ([]nl.Addr, error)
	AddrList(link netlink.Link, family int) ([]netlink.Addr, error)
	AddrDel(link netlink.Link, addr *netlink.Addr) error
	Close()
}

// opener opens links. A nil opener opens the links of the process's namespace.
type opener func() (links, error)

func openBridges(open opener, p paths.Paths, w *world, log func(string, ...any)) (*bridges, error) {
	if open == nil {
		open = func() (links, error) { return nl.Host(p.Proc) }
	}
	conn, err := open()
	if err != nil {
		return nil, err
	}
	had := func(network string) []netip.Prefix { return slices.Concat(w.Given[network], w.Own[network]) }
	return &bridges{conn, record.New(p.Run), had, log}, nil
}

func (b *bridges) close() {
	b.notes.Close()
	b.conn.Close()
}

// ours reports whether an attachment to the network created this bridge.
func (b *bridges) ours(network string, link netlink.Link) bool {
	note, err := b.notes.Made(record.MadeBridge(link.Attrs().Name))
	return err == nil && note != nil && note.Network == network && note.Index == link.Attrs().Index && link.Type() == "bridge"
}

// gave reports whether our configuration added an address to a network's bridge. Such an address
// is the first one of a block.
func (b *bridges) gave(n *store.Network, link netlink.Link, addr netip.Prefix) bool {
	block := addr.Masked()
	return gatewayOf(block) == addr.Addr() && (slices.Contains(b.had(n.Name), block) || possible(n, block) && b.ours(n.Name, link))
}

// tidy removes objects that no container needs any more. It removes addresses of blocks that this
// host no longer holds. When the last container of a removed network has left, it removes the
// network's bridge. The plugin bridge never removes these, because it cannot know that nothing
// needs them.
func (a *Agent) tidy(w *world, d *desired, may *removal) error {
	if !may.whole {
		return nil
	}
	b, err := openBridges(a.links, a.opts.Paths, w, a.opts.Log)
	if err != nil {
		return err
	}
	defer b.close()
	var errs []error
	for i := range d.parts {
		if network := d.parts[i].Network.Name; may.network(network) {
			a.mirror.bridged(network, true)
			errs = append(errs, a.tidyAddrs(b, &d.parts[i]))
		}
	}
	for _, network := range w.Bridges {
		if d.participates(network) || !may.network(network) {
			continue
		}
		removed, err := b.drop(network)
		if errs = append(errs, err); removed {
			a.mirror.bridged(network, false)
		}
	}
	return errors.Join(errs...)
}

// tidyAddrs removes addresses from a network's bridge if we added them and they belong to no
// block of this host.
func (a *Agent) tidyAddrs(b *bridges, p *part) error {
	link, err := b.conn.Link(bridgeName(p.Network.Name))
	if nl.IsNotFound(err) {
		return nil // this host has had no container on the network
	}
	if err != nil {
		return err
	}
	addrs, err := b.conn.Addrs(link.Attrs().Index)
	if err != nil {
		return err
	}
	var errs []error
	kept := slices.DeleteFunc(addrs, func(at nl.Addr) bool {
		block := at.Prefix.Masked()
		if slices.Contains(p.Blocks, block) || !b.gave(&p.Network, link, at.Prefix) {
			return false
		}
		free, err := a.free(p.Network.Name, block)
		if errs = append(errs, err); !free {
			return false
		}
		a.opts.Log("network %s: removing address %s from %s", p.Network.Name, at.Prefix, link.Attrs().Name)
		if err := b.conn.AddrDel(link, &netlink.Addr{IPNet: nl.IPNet(at.Prefix)}); err != nil && !nl.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove address %s from %s: %w", at.Prefix, link.Attrs().Name, err))
			return false
		}
		return true
	})
	return errors.Join(append(errs, p.hindered(link.Attrs().Name, kept))...)
}

// hindered returns an error for addresses of a bridge with which an ADD would fail.
func (p *part) hindered(bridge string, addrs []nl.Addr) error {
	if !p.complete() {
		return nil // there is no configuration, so no ADD can fail
	}
	var errs []error
	for i, gateway := range p.gateways() {
		g := netstate.Gateway{Link: bridge, Prefix: netip.PrefixFrom(gateway, p.Blocks[i].Bits())}
		if others, ok := g.Others(addrs); !ok && len(others) > 0 {
			errs = append(errs, fmt.Errorf("network %s: %s has the address %s, so no container can be attached: remove the containers that use the address, or the address itself: ip addr del %[3]s dev %[2]s",
				p.Network.Name, bridge, others[0]))
		}
	}
	return errors.Join(errs...)
}

// drop removes a network's bridge if the bridge is free. If the network no longer has a bridge of
// ours, removed is true.
func (b *bridges) drop(network string) (removed bool, err error) {
	name := bridgeName(network)
	link, err := b.conn.Link(name)
	if nl.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !b.ours(network, link) {
		b.log("network %s: %s stays: no note says that patchbay made it, as it notes its own: ip link del %[2]s", network, name)
		return true, nil
	}
	if free, err := b.free(network, link); !free {
		return false, err
	}
	if err := b.conn.LinkDel(link); err != nil && !nl.IsNotFound(err) {
		return false, fmt.Errorf("remove %s: %w", name, err)
	}
	return true, b.notes.ForgetBridge(name, link.Attrs().Index)
}

// free reports whether a bridge has no port, and no other link on top of it. If another program
// has added an address, the error names the address.
func (b *bridges) free(network string, link netlink.Link) (bool, error) {
	at := link.Attrs()
	links, err := b.conn.LinkList()
	if err != nil {
		return false, fmt.Errorf("list links: %w", err)
	}
	if slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().MasterIndex == at.Index || l.Attrs().ParentIndex == at.Index && l.Attrs().NetNsID < 0
	}) {
		return false, nil
	}
	addrs, err := b.conn.Addrs(at.Index)
	if err != nil {
		return false, err
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() && !slices.Contains(b.had(network), a.Prefix.Masked()) {
			return false, fmt.Errorf("network %s: bridge %s stays, because patchbay did not add its address %s; to remove it: ip link del %[2]s", network, at.Name, a.Prefix)
		}
	}
	return true, nil
}
