// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CanMake returns why the kernel makes no links of a kind; nil when it makes them, or when
// that is not known. Nothing is made: the request has a multicast Ethernet address and a
// parent link that does not exist, and each kind refuses one of the two. Linux looks for a
// module first, as for an ADD.
func (c *Conn) CanMake(kind string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "patchbay-probe", net.HardwareAddr{1, 0, 0, 0, 0, 1}
	attrs.ParentIndex = math.MaxInt32
	if err := c.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}); errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel makes no %s links (modprobe rtnl-link-%s shows why): %w", kind, kind, err)
	}
	return nil // EPERM decides nothing: an ADD may act in namespaces of the caller's own
}

// CanFilterVLANs returns why bridges have no VLANs; nil when they have, or when that is not
// known. Nothing is made. A kernel with VLANs refuses the default VLAN; one without ignores
// it and refuses the name. It would refuse the name first, too, before the bridge module is
// loaded, so CanMake loads it.
func (c *Conn) CanFilterVLANs() error {
	if err := c.CanMake("bridge"); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lo"
	none := uint16(4095)
	if err := c.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, VlanDefaultPVID: &none}); errors.Is(err, unix.EEXIST) {
		return errors.New("this kernel's bridges have no VLANs (CONFIG_BRIDGE_VLAN_FILTERING)")
	}
	return nil
}
