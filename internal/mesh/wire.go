// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Key is a public key of WireGuard.
type Key = nl.WireKey

// ParseKey parses a public key as Key.String writes it.
func ParseKey(s string) (k Key, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(k) || Key(b) == k {
		return k, errors.New("this is no WireGuard key: 44 characters of base64")
	}
	return Key(b), nil
}

// Keys are this host's keys. The private key is given to the kernel only; no State contains
// it.
type Keys struct {
	Public  Key
	Private Secret
}

// Secret is a private key. Secret is never printed.
type Secret [32]byte

// String hides the key.
func (Secret) String() string { return "(private key)" }

// GoString hides the key.
func (Secret) GoString() string { return "(private key)" }

// Wire is the desired WireGuard device. In each block of this host it has the first address,
// which IPAM plugins never give to a container. Programs on the host and masqueraded packets
// use this address as their source, because the other end accepts only addresses from our
// blocks.
type Wire struct {
	Name  string
	Key   Key
	Port  uint16
	MTU   int // MTU in bytes
	Addrs []netip.Prefix
	Peers []nl.WirePeer

	NoIPv6 bool // the kernel has no IPv6, or the MTU is too small for it
}

// String returns the commands of ip(8) and wg(8) that make the device.
func (w *Wire) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ip link add %s mtu %d type wireguard\nwg set %[1]s listen-port %[3]d # public key %s\n", w.Name, w.MTU, w.Port, w.Key)
	for _, a := range w.Addrs {
		fmt.Fprintf(&b, "ip address add %s dev %s\n", a, w.Name)
	}
	for _, p := range w.Peers {
		fmt.Fprintf(&b, "wg set %s peer %s endpoint %s allowed-ips %s\n", w.Name, p.Key, p.Endpoint,
			strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Allowed), "[]"), " ", ","))
	}
	return b.String()
}

// wireAddr returns the device's address in a block. It returns the invalid address for a block
// of one address.
func wireAddr(block netip.Prefix) (a netip.Addr) {
	if block.IsSingleIP() {
		return a
	}
	return block.Masked().Addr()
}

// wire returns the route to a block of an encrypted peer and adds the peer to the device.
func (c *compiler) wire(p Peer, block netip.Prefix) (r Route, err error) {
	local, remote, ok := c.ends(p)
	if !ok {
		return r, fmt.Errorf("no tunnel: it has %v and this host %v, which have no family in common", p.Underlay, c.self.Underlay)
	}
	mtu := c.inside(WireGuard, local)
	if err := c.fits(block, mtu); err != nil {
		return r, err
	}
	if err := c.checkKey(p); err != nil {
		return r, err
	}
	w := c.wireDevice(mtu)
	w.MTU = min(w.MTU, mtu)
	i := slices.IndexFunc(w.Peers, func(q nl.WirePeer) bool { return q.Key == p.Key })
	if i < 0 {
		at := netip.AddrPortFrom(remote, cmp.Or(p.WirePort, c.self.WirePort))
		w.Peers = append(w.Peers, nl.WirePeer{Key: p.Key, Endpoint: at})
		i = len(w.Peers) - 1
	}
	w.Peers[i].Allowed = append(w.Peers[i].Allowed, block)
	r = Route{Dst: block, Link: w.Name, Src: c.wireSource(block)}
	return c.limit(r, remote, Overhead(WireGuard, remote), w.MTU), nil
}

// wireDevice returns the WireGuard device. At the first use it adds the device to the state.
func (c *compiler) wireDevice(mtu int) *Wire {
	if c.state.Wire != nil {
		return c.state.Wire
	}
	w := &Wire{Name: c.self.WireDevice, Key: c.facts.Key, Port: c.self.WirePort, MTU: mtu, NoIPv6: c.facts.NoIPv6 || mtu < minMTU}
	for _, b := range c.self.Blocks {
		if a := wireAddr(b); a.IsValid() && !(w.NoIPv6 && a.Is6()) && c.self.encrypted(b) {
			w.Addrs = append(w.Addrs, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	c.state.Wire = w
	return w
}

// checkKey returns an error for a peer without a usable key. Such a peer gets no other transport.
func (c *compiler) checkKey(p Peer) error {
	if p.Key == (Key{}) {
		return errors.New("it has published no WireGuard key, and nothing is sent to it unencrypted: is its agent older, or without WireGuard?")
	}
	if p.Key == c.facts.Key {
		return fmt.Errorf("WireGuard key %s is this host's own: are the hosts copies? Remove the file of the key on one of them", p.Key)
	}
	if id, used := c.keys[p.Key]; used && id != p.ID {
		return fmt.Errorf("WireGuard key %s is that of peer %s: are they copies? Remove the file of the key on one of them", p.Key, id)
	}
	c.keys[p.Key] = p.ID
	return nil
}

// wireSource returns the device's address in the network of a block.
func (c *compiler) wireSource(block netip.Prefix) (src netip.Addr) {
	for _, n := range c.self.Subnets {
		for _, own := range c.self.Blocks {
			if a := wireAddr(own); n.Prefix.Overlaps(block) && n.Prefix.Contains(a) {
				return a
			}
		}
	}
	return src
}

// encrypt marks the networks of encrypted peers as encrypted.
func (c *compiler) encrypt(peers []Peer) {
	c.self.Subnets = slices.Clone(c.self.Subnets)
	for i, n := range c.self.Subnets {
		in := func(p Peer) bool {
			return p.Transport == WireGuard && slices.ContainsFunc(p.Blocks, n.Prefix.Overlaps)
		}
		c.self.Subnets[i].Encrypted = n.Encrypted || slices.ContainsFunc(peers, in)
	}
}

// encrypted reports whether a block of a host lies in an encrypted network.
func (s Self) encrypted(block netip.Prefix) bool {
	return slices.ContainsFunc(s.Subnets, func(n Subnet) bool { return n.Encrypted && n.Prefix.Overlaps(block) })
}

// refuse adds routes that refuse packets to the encrypted networks. The routes to the peers' blocks
// have priority. Without the refusing routes, packets for a peer without a key would take the default
// route unencrypted, and so would packets for all peers while the device does not exist.
func (c *compiler) refuse() {
	for _, n := range c.state.Subnets {
		routed := slices.ContainsFunc(c.state.Routes, func(r Route) bool { return r.Dst == n.Prefix })
		if n.Encrypted && !routed && !(c.facts.NoIPv6 && n.Prefix.Addr().Is6()) {
			c.state.Routes = append(c.state.Routes, Route{Dst: n.Prefix, Refused: true})
		}
	}
}

// wireKey returns this host's public key if a peer needs WireGuard. It returns an error if the
// kernel does not have WireGuard.
func (m *Mesh) wireKey(peers []Peer) (k Key, err error) {
	if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Transport == WireGuard }) {
		return k, nil
	}
	if m.opts.Keys == nil {
		return k, errors.New("transport wireguard needs a key, and this program has none")
	}
	return m.opts.Keys.Public, m.hasWireGuard()
}

// hasWireGuard returns an error if the kernel does not have WireGuard.
func (m *Mesh) hasWireGuard() error {
	w, err := m.conn.WireGuard()
	if err != nil {
		return fmt.Errorf("transport wireguard: %w", err)
	}
	w.Close()
	return nil
}

// Encrypt returns this host's public key, for the peers. It gets the keys at the first call. It returns an
// error if this host cannot encrypt.
func (m *Mesh) Encrypt(ctx context.Context) (k Key, err error) {
	if err := m.hasWireGuard(); err != nil {
		return k, err
	}
	if m.opts.Keys == nil {
		if m.opts.Keys, err = m.opts.MakeKeys(ctx); err != nil {
			return k, err
		}
	}
	return m.opts.Keys.Public, nil
}

// wired is an existing device with the state that it had before this Sync.
type wired struct {
	mesh  *Mesh
	want  *Wire
	have  nl.WireDevice
	index int
}

// wire makes the kernel's device equal to the state and adds peers. It returns nil if the
// state has no such device.
func (m *Mesh) wire(s State) (*wired, error) {
	if s.Wire == nil {
		return nil, nil
	}
	socket, err := m.conn.WireGuard()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	d := &wired{mesh: m, want: s.Wire}
	if d.index, err = m.wireLink(s); err != nil {
		return nil, err
	}
	if d.have, err = socket.Device(d.index); err != nil {
		return nil, err
	}
	if err := d.adjust(socket); err != nil {
		return nil, fmt.Errorf("set up link %s: %w", s.Wire.Name, err)
	}
	return d, errors.Join(d.addrs(), d.peers(socket))
}

// wireLink makes the link and sets its alias and MTU. A WireGuard link that is down and has no
// alias is ours; an agent was killed before it wrote the alias.
func (m *Mesh) wireLink(s State) (index int, err error) {
	link, err := m.conn.Link(s.Wire.Name)
	if nl.IsNotFound(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = s.Wire.Name, s.Wire.MTU
		if err = m.conn.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err == nil {
			link, err = m.conn.Link(s.Wire.Name)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("make link %s: %w", s.Wire.Name, err)
	}
	at, alias := link.Attrs(), s.mark().alias()
	if half := at.Alias == "" && at.Flags&net.FlagUp == 0; link.Type() != "wireguard" || at.Alias != alias && !half {
		return 0, fmt.Errorf("make link %s: a link of this name exists and is not ours", s.Wire.Name)
	}
	var change nl.LinkChange
	if at.Alias != alias {
		change.Alias = &alias
	}
	if at.MTU != s.Wire.MTU {
		change.MTU = s.Wire.MTU
	}
	if change.Alias != nil || change.MTU != 0 {
		err = m.conn.SetLink(at.Index, change)
	}
	return at.Index, err
}

// adjust sets the key and the port, and then sets the link up.
func (d *wired) adjust(socket *nl.WireGuard) error {
	if keys := d.mesh.opts.Keys; d.have.Key != keys.Public || d.have.Port != d.want.Port {
		err := socket.SetDevice(d.index, nl.WireKey(keys.Private), d.want.Port)
		if errors.Is(err, unix.EADDRINUSE) {
			return d.inUse(err)
		}
		if err != nil {
			return err
		}
	}
	if err := d.mesh.sysctls(d.want.Name, d.want.NoIPv6); err != nil {
		return err
	}
	link, err := d.mesh.conn.LinkAt(d.index)
	if err != nil || link.Attrs().Flags&net.FlagUp != 0 {
		return err
	}
	err = d.mesh.conn.SetLink(d.index, nl.LinkChange{Up: true})
	if errors.Is(err, unix.EADDRINUSE) {
		return d.inUse(err)
	}
	return err
}

func (d *wired) inUse(err error) error {
	return fmt.Errorf("UDP port %d: %w (another WireGuard device or program has it)", d.want.Port, err)
}

// addrs adds the device's addresses and removes all others, because the device is ours. No address is tentative,
// even for a moment: the kernel refuses a tentative one as the source of a route.
func (d *wired) addrs() error {
	link, err := d.mesh.conn.LinkAt(d.index)
	if err != nil {
		return err
	}
	have, err := d.mesh.conn.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", d.want.Name, err)
	}
	var errs []error
	for _, p := range d.want.Addrs {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return nl.PrefixOf(a.IPNet) == p }) {
			errs = append(errs, d.mesh.conn.AddrAdd(link, &netlink.Addr{IPNet: nl.IPNet(p), Flags: unix.IFA_F_NODAD}))
		}
	}
	for _, a := range have {
		if p := nl.PrefixOf(a.IPNet); !slices.Contains(d.want.Addrs, p) && !p.Addr().IsLinkLocalUnicast() {
			errs = append(errs, d.mesh.conn.AddrDel(link, &a))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set addresses of %s: %w", d.want.Name, err)
	}
	return nil
}

// peers adds and changes peers. If a block moved to another peer, or to a new key of the same
// host, the kernel moves it in one step. All addresses of a peer are replaced only if some
// must be removed, because the peer then has none for a moment.
func (d *wired) peers(socket *nl.WireGuard) error {
	var errs []error
	for _, p := range d.want.Peers {
		i := slices.IndexFunc(d.have.Peers, func(h nl.WirePeer) bool { return h.Key == p.Key })
		surplus := false
		if i >= 0 {
			h := d.have.Peers[i]
			surplus = slices.ContainsFunc(h.Allowed, func(a netip.Prefix) bool { return !slices.Contains(p.Allowed, a) })
			if !surplus && len(h.Allowed) == len(p.Allowed) && h.Endpoint == p.Endpoint {
				continue
			}
		}
		if err := socket.SetPeer(d.index, p, surplus); err != nil {
			errs = append(errs, fmt.Errorf("set WireGuard peer at %s: %w", p.Endpoint, err))
		}
	}
	return errors.Join(errs...)
}

// prune removes peers that are no longer wanted.
func (d *wired) prune() error {
	if d == nil {
		return nil
	}
	socket, err := d.mesh.conn.WireGuard()
	if err != nil {
		return err
	}
	defer socket.Close()
	var errs []error
	for _, h := range d.have.Peers {
		if slices.ContainsFunc(d.want.Peers, func(p nl.WirePeer) bool { return p.Key == h.Key }) {
			continue
		}
		if err := socket.DeletePeer(d.index, h.Key); err != nil {
			errs = append(errs, fmt.Errorf("remove WireGuard peer at %s: %w", h.Endpoint, err))
		}
	}
	return errors.Join(errs...)
}
