// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
)

// simLinks are the bridges in the kernel of a simulated host.
type simLinks struct {
	made int
	all  []*simBridge
	cut  string // a bridge that was removed with a container on it
}

// simBridge is a bridge with at most one container.
type simBridge struct {
	netlink.Bridge
	addrs []netip.Prefix
	used  netip.Addr // the container's; invalid without one
}

func (l *simLinks) open() (links, error) { return l, nil }

func (l *simLinks) Close() {}

func (l *simLinks) find(is func(*simBridge) bool) (*simBridge, error) {
	if i := slices.IndexFunc(l.all, is); i >= 0 {
		return l.all[i], nil
	}
	return nil, unix.ENODEV
}

func (l *simLinks) Link(name string) (netlink.Link, error) {
	return l.find(func(b *simBridge) bool { return b.Name == name })
}

func (l *simLinks) LinkAt(index int) (netlink.Link, error) {
	return l.find(func(b *simBridge) bool { return b.Index == index })
}

// LinkList returns the bridges and the ports of containers.
func (l *simLinks) LinkList() (out []netlink.Link, err error) {
	for _, b := range l.all {
		if out = append(out, b); b.used.IsValid() {
			out = append(out, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{MasterIndex: b.Index}})
		}
	}
	return out, nil
}

func (l *simLinks) LinkDel(link netlink.Link) error {
	b, err := l.find(func(b *simBridge) bool { return b.Index == link.Attrs().Index })
	if err != nil {
		return err
	}
	if b.used.IsValid() {
		l.cut = b.Name
	}
	l.all = slices.DeleteFunc(l.all, func(o *simBridge) bool { return o == b })
	return nil
}

func (l *simLinks) Addrs(index int) (out []nl.Addr, err error) {
	b, err := l.find(func(b *simBridge) bool { return b.Index == index })
	if err != nil {
		return nil, err
	}
	for _, p := range b.addrs {
		out = append(out, nl.Addr{Prefix: p})
	}
	return out, nil
}

// AddrList returns the addresses of all links.
func (l *simLinks) AddrList(netlink.Link, int) (out []netlink.Addr, err error) {
	for _, b := range l.all {
		for _, p := range b.addrs {
			out = append(out, netlink.Addr{IPNet: nl.IPNet(p), LinkIndex: b.Index})
		}
	}
	return out, nil
}

func (l *simLinks) AddrDel(link netlink.Link, addr *netlink.Addr) error {
	b, err := l.find(func(b *simBridge) bool { return b.Index == link.Attrs().Index })
	if err != nil {
		return err
	}
	b.addrs = slices.DeleteFunc(b.addrs, func(p netip.Prefix) bool { return p == nl.PrefixOf(addr.IPNet) })
	return nil
}

// bridge returns a network's bridge, and creates it as an ADD does.
func (h *simHost) bridge(network string) *simBridge {
	name := bridgeName(network)
	b, err := h.links.find(func(b *simBridge) bool { return b.Name == name })
	if err != nil {
		h.links.made++
		b = &simBridge{Bridge: netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Index: h.links.made}}}
		h.links.all = append(h.links.all, b)
		check(record.New(h.paths().Run).NoteMade(record.MadeBridge(name), record.Made{Network: network, Index: b.Index}))
	}
	return b
}

// attach removes all containers. If on is set, it then adds one to each network that has a
// configuration.
func (h *simHost) attach(on bool) {
	for _, b := range h.links.all {
		b.used = netip.Addr{}
	}
	for _, network := range netNames() {
		h.detach(network)
		if on && h.block(network).IsValid() {
			if err := h.add(network); err != nil {
				h.c.s.Say("  ADD on %s: %v", h.name, err)
			}
		}
	}
}

// add does what an ADD of the plugin bridge does with the configuration that the agent wrote.
func (h *simHost) add(network string) error {
	block, b := h.block(network), h.bridge(network)
	gateway := netstate.Gateway{Link: b.Name, Prefix: netip.PrefixFrom(gatewayOf(block), block.Bits())}
	have, err := h.links.Addrs(b.Index)
	check(err)
	others, ok := gateway.Others(have)
	if len(others) > 0 {
		return fmt.Errorf("%q already has an IP address different from %v", b.Name, gateway.Prefix)
	}
	if !ok {
		b.addrs = append(b.addrs, gateway.Prefix)
	}
	b.used = gateway.Prefix.Addr().Next()
	dir := filepath.Join(h.dir, "cni/networks", network)
	check(os.MkdirAll(dir, 0o755))
	check(os.WriteFile(filepath.Join(dir, b.used.String()), nil, 0o600))
	return nil
}

// detach gives back the addresses of a network.
func (h *simHost) detach(network string) {
	files, err := filepath.Glob(filepath.Join(h.dir, "cni/networks", network, "10.*"))
	check(err)
	for _, path := range files {
		check(os.Remove(path))
	}
}

// granted returns the block from which host-local gives out addresses of a network, also for a Docker
// network with a copy of an earlier configuration. If there is none, the block is invalid.
func (h *simHost) granted(network string) (p netip.Prefix) {
	g, err := grants{h.dir + "/cni"}.store(network).Grant()
	if check(err); g != nil && len(g.Blocks) > 0 {
		p = g.Blocks[0]
	}
	return p
}

// grantsHold checks the invariant of grants: after the agent has acted on what it knows, the host
// gives out addresses only of networks that exist, and of no other host's block.
func (h *simHost) grantsHold() error {
	w, _, synced := h.agent.mirror.snapshot()
	for _, n := range netNames() {
		b := h.granted(n)
		if !b.IsValid() || !synced {
			continue
		}
		if w.network(n).Name == "" {
			return fmt.Errorf("%s gives out addresses of %s, a block of the removed network %s", h.name, b, n)
		}
		for _, o := range w.blocksOf(n) {
			if o.Node != h.agent.ID() && o.Prefix == b {
				return fmt.Errorf("%s gives out addresses of %s, which is %s's", h.name, b, o.Node)
			}
		}
	}
	return nil
}

// gatewaysStay checks the invariant of gateways: a container keeps its bridge, and the bridge
// keeps its address.
func (h *simHost) gatewaysStay() error {
	if h.links.cut != "" {
		return fmt.Errorf("%s removed %s, with a container on it", h.name, h.links.cut)
	}
	for _, b := range h.links.all {
		if b.used.IsValid() && !slices.ContainsFunc(b.addrs, func(p netip.Prefix) bool { return p.Contains(b.used) }) {
			return fmt.Errorf("%s took the gateway of %s from %s", h.name, b.used, b.Name)
		}
	}
	return nil
}

// tidied checks the bridges after Calm, when there are no containers. A removed network has no
// bridge, and no bridge has an address of a block that the host does not hold.
func (h *simHost) tidied(w *world) error {
	for _, network := range netNames() {
		b, err := h.links.find(func(b *simBridge) bool { return b.Name == bridgeName(network) })
		switch {
		case err != nil:
		case w.network(network).Name == "":
			return fmt.Errorf("%s exists, and its network was removed", b.Name)
		case slices.ContainsFunc(b.addrs, func(p netip.Prefix) bool { return p.Masked() != h.block(network) }):
			return fmt.Errorf("%s has %v, the block is %v", b.Name, b.addrs, h.block(network))
		}
	}
	return nil
}

// attaches checks that each ADD succeeds after Calm.
func (c *cluster) attaches() error {
	for _, h := range c.hosts {
		for _, network := range netNames() {
			if h.up && h.block(network).IsValid() {
				if err := h.add(network); err != nil {
					return fmt.Errorf("ADD on %s: %w", h.name, err)
				}
			}
		}
	}
	return nil
}
