// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

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
