// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Macvlan is a link with an Ethernet address of its own.
type Macvlan struct {
	Mode       netlink.MacvlanMode
	BCQueueLen uint32 // broadcast frames in the queue; 0 is the kernel's default
}

// Type is the kind's name.
func (Macvlan) Type() string { return "macvlan" }

// String is as in the ip command.
func (m Macvlan) String() string {
	s := "macvlan mode " + macvlanMode(m.Mode)
	if m.BCQueueLen > 0 {
		s += fmt.Sprintf(" bcqueuelen %d", m.BCQueueLen)
	}
	return s
}

func macvlanMode(m netlink.MacvlanMode) string {
	switch m {
	case netlink.MACVLAN_MODE_PRIVATE:
		return "private"
	case netlink.MACVLAN_MODE_VEPA:
		return "vepa"
	case netlink.MACVLAN_MODE_BRIDGE:
		return "bridge"
	case netlink.MACVLAN_MODE_PASSTHRU:
		return "passthru"
	case netlink.MACVLAN_MODE_SOURCE:
		return "source"
	}
	return fmt.Sprintf("%d", m)
}

func (m Macvlan) link(a netlink.LinkAttrs) netlink.Link {
	return &netlink.Macvlan{LinkAttrs: a, Mode: m.Mode, BCQueueLen: m.BCQueueLen}
}

func (m Macvlan) diff(l netlink.Link) string {
	if is, ok := l.(*netlink.Macvlan); ok && is.Mode != m.Mode {
		return fmt.Sprintf("container macvlan mode %s does not match expected value: %s", macvlanMode(is.Mode), macvlanMode(m.Mode))
	}
	return ""
}

// IPVlan is a link that shares its master's Ethernet address.
type IPVlan struct{ Mode netlink.IPVlanMode }

// Type is the kind's name.
func (IPVlan) Type() string { return "ipvlan" }

// String is as in the ip command.
func (i IPVlan) String() string { return "ipvlan mode " + ipvlanMode(i.Mode) }

func ipvlanMode(m netlink.IPVlanMode) string {
	switch m {
	case netlink.IPVLAN_MODE_L2:
		return "l2"
	case netlink.IPVLAN_MODE_L3:
		return "l3"
	case netlink.IPVLAN_MODE_L3S:
		return "l3s"
	}
	return fmt.Sprintf("%d", m)
}

func (i IPVlan) link(a netlink.LinkAttrs) netlink.Link {
	return &netlink.IPVlan{LinkAttrs: a, Mode: i.Mode}
}

func (i IPVlan) diff(l netlink.Link) string {
	if is, ok := l.(*netlink.IPVlan); ok && is.Mode != i.Mode {
		return fmt.Sprintf("Container IPVlan mode %s does not match expected value: %s", ipvlanMode(is.Mode), ipvlanMode(i.Mode))
	}
	return ""
}

// VLAN is the interface to one VLAN (802.1Q) of the master.
type VLAN struct {
	ID  int
	MTU int // expected by Diff; 0 for any
}

// Type is the kind's name.
func (VLAN) Type() string { return "vlan" }

// String is as in the ip command.
func (v VLAN) String() string { return fmt.Sprintf("vlan id %d", v.ID) }

func (v VLAN) link(a netlink.LinkAttrs) netlink.Link {
	return &netlink.Vlan{LinkAttrs: a, VlanId: v.ID, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
}

func (v VLAN) diff(l netlink.Link) string {
	if is, ok := l.(*netlink.Vlan); ok && is.VlanId != v.ID {
		return fmt.Sprintf("vlan: Interface %s has VLAN ID %d, configured is %d", l.Attrs().Name, is.VlanId, v.ID)
	}
	if mtu := l.Attrs().MTU; v.MTU != 0 && mtu != v.MTU {
		return fmt.Sprintf("vlan: Interface %s has MTU %d, configured is %d", l.Attrs().Name, mtu, v.MTU)
	}
	return ""
}

// Dummy is a device that drops what it sends.
type Dummy struct{}

// Type is the kind's name.
func (Dummy) Type() string { return "dummy" }

// String is as in the ip command.
func (Dummy) String() string { return "dummy" }

func (Dummy) link(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} }

func (Dummy) diff(netlink.Link) string { return "" }
