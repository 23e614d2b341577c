// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	if id, taken := c.keys[p.Key]; taken && id != p.ID {
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
		taken := slices.ContainsFunc(c.state.Routes, func(r Route) bool { return r.Dst == n.Prefix })
		if n.Encrypted && !taken && !(c.facts.NoIPv6 && n.Prefix.Addr().Is6()) {
			c.state.Routes = append(c.state.Routes, Route{Dst: n.Prefix, Refused: true})
		}
	}
}
