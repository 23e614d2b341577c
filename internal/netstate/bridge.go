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

// Bridge is a bridge on the host. It belongs to the network and not to an attachment. So no DEL
// removes it, and Ensure changes nothing in an existing bridge except what its fields say.
type Bridge struct {
	Name string
	MTU  int // MTU of a new bridge, in bytes; 0 means the kernel's default
	// MAC is the address of a new bridge. If it is empty, the bridge takes the lowest MAC of its
	// ports and changes it when ports come and go.
	MAC           net.HardwareAddr
	VLANFiltering bool // applies to a new bridge only

	Network string // written down with a new bridge, so that "network rm" knows that we made the bridge
	Promisc bool

	// Pin fixes the MAC of an existing bridge. Without Pin the bridge may take the MAC of a new
	// port. A gateway needs a fixed MAC, because its neighbours remember the MAC.
	Pin bool

	// NoDuplicates keeps a bridge that goes up from looking for duplicates of its IPv6 addresses. A new
	// bridge without a port has a carrier, so the kernel begins with its link-local address at once.
	NoDuplicates bool
}

// String returns the ip commands that make the bridge.
func (b Bridge) String() string {
	s := "host: ip link add " + b.Name
	if !b.NoDuplicates {
		s += " up"
	}
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
	if b.NoDuplicates {
		s += "; sysctl -w net/ipv6/conf/" + b.Name + "/accept_dad=0; ip link set " + b.Name + " up"
	}
	return s
}

// Ensure creates the bridge if it does not exist, and sets it up.
func (b Bridge) Ensure(ctx context.Context, env *Env) (Undo, error) {
	if err := b.ensure(ctx, env); err != nil {
		return nil, fmt.Errorf("failed to create bridge %q: %w", b.Name, err)
	}
	return nil, nil
}

func (b Bridge) ensure(ctx context.Context, env *Env) error {
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
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if b.NoDuplicates {
		if _, err := b.ipv6().Ensure(ctx, env); err != nil {
			return err
		}
	}
	return env.Host.LinkSetUp(link)
}

func (b Bridge) ipv6() IPv6 {
	return IPv6{Where: Host, List: []LinkIPv6{{Link: b.Name, Conf: nl.AcceptDAD, Value: 0}}}
}

// pin sets the bridge's MAC to its current value, so that ports no longer change the MAC. The
// kernel then forgets the bridge's neighbours. So pin serves only bridges without a live port,
// because these have no neighbours. For other bridges Gateway fixes the MAC.
func (b Bridge) pin(env *Env, link netlink.Link) error {
	attrs := link.Attrs()
	if !b.Pin || len(b.MAC) == 0 || bytes.Equal(attrs.HardwareAddr, b.MAC) || attrs.OperState == netlink.OperUp {
		return nil
	}
	mac := attrs.HardwareAddr
	if len(mac) == 0 { // all zeros: the MAC went with the last port
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

// make creates the bridge. make accepts that another process creates the bridge first.
func (b Bridge) make(env *Env) (netlink.Link, error) {
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	br.Name, br.MTU, br.HardwareAddr = b.Name, b.MTU, b.MAC
	if !b.NoDuplicates {
		br.Flags = net.FlagUp
	}
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
			env.Warn(err) // the only harm is that "network rm" will leave the bridge
		}
	}
	return link, err
}

// Diff reports whether the bridge is missing or down, or has another MAC than in the previous
// result. It reports missing promiscuous mode if the configuration asks for that mode. It does
// not report promiscuous mode that another program, such as tcpdump, switched on.
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

// Port makes a link a port of a bridge. In the kernel, a new port has both flags off.
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

// String returns the ip command that makes the port.
func (p Port) String() string {
	return fmt.Sprintf("host: ip link set %s master %s%s", p.Link, p.Bridge, portText(p.PortFlags))
}

// Ensure attaches the link to the bridge. Ensure has nothing to undo, because the link itself
// is deleted.
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

// Diff reports whether the link is no port of the bridge, or lacks a flag.
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
	case p.Hairpin && !flags.Hairpin: // a flag too many is fine: portmap may also set hairpin
		return fmt.Sprintf("hairpin mode of %s is off", p.Link), nil
	case flags.Isolated != p.Isolated:
		return fmt.Sprintf("isolation of port %s is %v instead of %v", p.Link, flags.Isolated, p.Isolated), nil
	}
	return "", nil
}

// diffMissing drops the error of a missing link, because the object that makes the link
// reports it.
func diffMissing(err error) (string, error) {
	if nl.IsNotFound(err) {
		return "", nil
	}
	return "", err
}
