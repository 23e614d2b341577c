// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// kindText is the kind of a link with its options, as in the ip command.
func kindText(l netlink.Link) string {
	switch l := l.(type) {
	case *netlink.Macvlan:
		s := "macvlan mode " + macvlanMode(l.Mode)
		if l.BCQueueLen > 0 {
			s += fmt.Sprintf(" bcqueuelen %d", l.BCQueueLen)
		}
		return s
	case *netlink.IPVlan:
		return "ipvlan mode " + ipvlanMode(l.Mode)
	case *netlink.Vlan:
		return fmt.Sprintf("vlan id %d", l.VlanId)
	}
	return l.Type()
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

// diffKind describes how a link of the same kind differs in its options.
func (c Child) diffKind(have netlink.Link) string {
	switch have := have.(type) {
	case *netlink.Macvlan:
		if want := c.Kind.(*netlink.Macvlan); have.Mode != want.Mode {
			return fmt.Sprintf("container macvlan mode %s does not match expected value: %s", macvlanMode(have.Mode), macvlanMode(want.Mode))
		}
	case *netlink.IPVlan:
		if want := c.Kind.(*netlink.IPVlan); have.Mode != want.Mode {
			return fmt.Sprintf("Container IPVlan mode %s does not match expected value: %s", ipvlanMode(have.Mode), ipvlanMode(want.Mode))
		}
	case *netlink.Vlan:
		if want := c.Kind.(*netlink.Vlan); have.VlanId != want.VlanId {
			return fmt.Sprintf("vlan: Interface %s has VLAN ID %d, configured is %d", have.Name, have.VlanId, want.VlanId)
		}
		if c.MTU != 0 && have.MTU != c.MTU {
			return fmt.Sprintf("vlan: Interface %s has MTU %d, configured is %d", have.Name, have.MTU, c.MTU)
		}
	}
	return ""
}
