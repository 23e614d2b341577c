// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Bridge is a bridge on the host. It belongs to the network, not to an attachment: no DEL
// removes it, and an existing one is used as it is.
type Bridge struct {
	Name string
	MTU  int // bytes, of a new bridge; 0 is the kernel's default
	// MAC is the address of a new bridge. Without one the bridge takes the lowest MAC of
	// its ports, and changes it as ports come and go.
	MAC           net.HardwareAddr
	VLANFiltering bool // of a new bridge

	Network string // recorded with a new bridge, so that network rm knows that it is ours
	Promisc bool

	// Pin fixes the MAC of an existing bridge, as a gateway needs: its neighbours remember
	// it. Otherwise it may change to that of a port.
	Pin bool
}

// String is the ip command.
func (b Bridge) String() string {
	s := "host: ip link add " + b.Name + " up"
	if len(b.MAC) > 0 {
		s += " address " + b.MAC.String()
	}
	if b.MTU > 0 {
		s += fmt.Sprintf(" mtu %d", b.MTU)
	}
	if b.Promisc {
		s += " promisc on"
	}
	s += " type bridge"
	if b.VLANFiltering {
		s += " vlan_filtering 1"
	}
	return s
}

// Ensure creates the bridge unless it exists, and sets it up.
func (b Bridge) Ensure(_ context.Context, env *Env) (Undo, error) {
	if err := b.ensure(env); err != nil {
		return nil, fmt.Errorf("failed to create bridge %q: %w", b.Name, err)
	}
	return nil, nil
}

func (b Bridge) ensure(env *Env) error {
	link, err := env.Link(Host, b.Name)
	if nl.IsNotFound(err) {
		link, err = b.make(env)
	}
	if err != nil {
		return err
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("%q already exists but is not a bridge", b.Name)
	}
	if b.Promisc && link.Attrs().Promisc == 0 {
		if err := env.Host.SetPromiscOn(link); err != nil {
			return fmt.Errorf("could not set promiscuous mode on %q: %w", b.Name, err)
		}
	}
	if err := b.pin(env, link); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return env.Host.LinkSetUp(link)
	}
	return nil
}

// pin sets the MAC that the bridge has, so that no port changes it any more. The kernel
// then forgets the bridge's neighbours, so pin is for a bridge that has no live port and so
// no neighbours. Gateway pins a bridge that has ports of others.
func (b Bridge) pin(env *Env, link netlink.Link) error {
	attrs := link.Attrs()
	if !b.Pin || len(b.MAC) == 0 || bytes.Equal(attrs.HardwareAddr, b.MAC) || attrs.OperState == netlink.OperUp {
		return nil
	}
	mac := attrs.HardwareAddr
	if len(mac) == 0 { // zeros: its last port took the address along
		mac = b.MAC
	}
	return setMAC(env, link, mac)
}

func setMAC(env *Env, link netlink.Link, mac net.HardwareAddr) error {
	if err := env.Host.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("could not set bridge's mac: %w", err)
	}
	link.Attrs().HardwareAddr = mac
	return nil
}

// make creates the bridge. Another process may be faster.
func (b Bridge) make(env *Env) (netlink.Link, error) {
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	br.Name, br.MTU, br.HardwareAddr, br.Flags = b.Name, b.MTU, b.MAC, net.FlagUp
	if b.VLANFiltering {
		br.VlanFiltering = &b.VLANFiltering
	}
	if err := env.Host.LinkAdd(br); errors.Is(err, unix.EEXIST) {
		return env.Link(Host, b.Name)
	} else if err != nil {
		return nil, fmt.Errorf("could not add %q: %w", b.Name, err)
	}
	link, err := env.Link(Host, b.Name)
	if err == nil && env.Records != nil {
		note := record.Made{Network: b.Network, Index: link.Attrs().Index}
		if err := env.Records.NoteMade(record.MadeBridge(b.Name), note); err != nil {
			env.Warn(err) // network rm leaves the bridge then, nothing worse
		}
	}
	return link, err
}

// Diff expects a bridge of that name, up, with the MAC of the previous result. It expects
// promiscuous mode when configured; promiscuous mode set by another program, such as
// tcpdump, is no difference.
func (b Bridge) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, b.Name)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("Interface name %s not found", b.Name), nil
	case err != nil:
		return "", err
	case link.Type() != "bridge":
		return fmt.Sprintf("Interface %s does not have link type of bridge", b.Name), nil
	case len(b.MAC) > 0 && !bytes.Equal(link.Attrs().HardwareAddr, b.MAC):
		return fmt.Sprintf("Bridge interface %s Mac doesn't match: %s", b.Name, b.MAC), nil
	case b.Promisc && link.Attrs().Promisc == 0:
		return fmt.Sprintf("Bridge interface %s configured Promisc Mode true doesn't match current state: false", b.Name), nil
	case link.Attrs().Flags&net.FlagUp == 0:
		return fmt.Sprintf("Interface %s is down", b.Name), nil
	}
	return "", nil
}

// Port makes a link a port of a bridge. A new port has neither flag.
type Port struct {
	Link, Bridge string
	nl.PortFlags
}

func portText(f nl.PortFlags) (s string) {
	if f.Hairpin {
		s += " hairpin on"
	}
	if f.Isolated {
		s += " isolated on"
	}
	return s
}

// String is the ip command.
func (p Port) String() string {
	return fmt.Sprintf("host: ip link set %s master %s%s", p.Link, p.Bridge, portText(p.PortFlags))
}

// Ensure attaches the link. There is nothing to undo: the link is deleted.
func (p Port) Ensure(_ context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Host, p.Link)
	if err != nil {
		return nil, err
	}
	br, err := env.Link(Host, p.Bridge)
	if err != nil {
		return nil, err
	}
	if err := env.Host.LinkSetMaster(link, br); err != nil {
		return nil, fmt.Errorf("failed to connect %q to bridge %v: %w", p.Link, p.Bridge, err)
	}
	link.Attrs().MasterIndex = br.Attrs().Index
	if p.Hairpin {
		if err := env.Host.LinkSetHairpin(link, true); err != nil {
			return nil, fmt.Errorf("failed to setup hairpin mode for %v: %w", p.Link, err)
		}
	}
	if p.Isolated {
		if err := env.Host.LinkSetIsolated(link, true); err != nil {
			return nil, fmt.Errorf("failed to set isolated on for %v: %w", p.Link, err)
		}
	}
	return nil, nil
}

// Diff expects the link in the bridge, with the flags.
func (p Port) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, p.Link)
	if err != nil {
		return diffMissing(err)
	}
	br, err := env.Link(Host, p.Bridge)
	if err != nil {
		return diffMissing(err)
	}
	if link.Attrs().MasterIndex != br.Attrs().Index {
		return fmt.Sprintf("CNI veth created for bridge %s was not found: %s is not a port of it", p.Bridge, p.Link), nil
	}
	flags, err := env.Host.PortFlags(link.Attrs().Index)
	switch {
	case err != nil:
		return "", err
	case p.Hairpin && !flags.Hairpin: // portmap may have set it too
		return fmt.Sprintf("hairpin mode of %s is off", p.Link), nil
	case flags.Isolated != p.Isolated:
		return fmt.Sprintf("isolation of port %s is %v instead of %v", p.Link, flags.Isolated, p.Isolated), nil
	}
	return "", nil
}

// diffMissing finds no difference when the link is missing: the object that makes it
// reports that.
func diffMissing(err error) (string, error) {
	if nl.IsNotFound(err) {
		return "", nil
	}
	return "", err
}
