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

// A thread that opens tunDevice makes taps in its own namespace.
const tunDevice = "/dev/net/tun"

// Tap is a tap device that stays when no process has it open.
type Tap struct {
	Name         string
	MultiQueue   bool    // a process may open several queues
	Owner, Group *uint32 // this user and group may open the tap, like root; nil means any process with CAP_NET_ADMIN
}

// AddTap creates a tap, which is down. If the tap exists, the error is EBUSY or EEXIST.
func (c *Conn) AddTap(t Tap) error { return c.Do(t.Add) }

// Add creates the tap in the namespace of the calling thread. The process that later opens the
// tap chooses whether frames have a header (IFF_VNET_HDR, IFF_NO_PI). Until TUNSETPERSIST, the
// kernel deletes the device when the descriptor is closed.
func (t Tap) Add() error {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tunDevice, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	req, err := unix.NewIfreq(t.Name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if t.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make tap %s (TUNSETIFF): %w", t.Name, err)
	}
	return errors.Join(t.ioctl(fd, unix.TUNSETOWNER, t.Owner, "TUNSETOWNER"),
		t.ioctl(fd, unix.TUNSETGROUP, t.Group, "TUNSETGROUP"),
		t.ioctl(fd, unix.TUNSETPERSIST, new(uint32(1)), "TUNSETPERSIST"))
}

func (t Tap) ioctl(fd int, request uint, value *uint32, name string) error {
	if value == nil {
		return nil
	}
	if err := unix.IoctlSetInt(fd, request, int(*value)); err != nil {
		return fmt.Errorf("make tap %s (%s): %w", t.Name, name, err)
	}
	return nil
}

// CanTap returns nil if this process can make taps. Otherwise its error says why not.
func CanTap() error {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tunDevice, err)
	}
	return unix.Close(fd)
}

// CanMake returns an error if the kernel cannot make links of a kind. If the kernel can, or if
// that is not known, CanMake returns nil. CanMake makes no link: its request has a multicast
// Ethernet address and a parent link that does not exist, and each kind refuses one of the two.
// Linux first tries to load a module, as it does for an ADD.
func (c *Conn) CanMake(kind string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "patchbay-probe", net.HardwareAddr{1, 0, 0, 0, 0, 1}
	attrs.ParentIndex = math.MaxInt32
	if err := c.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}); errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel makes no %s links (modprobe rtnl-link-%s shows why): %w", kind, kind, err)
	}
	return nil // EPERM tells nothing: an ADD may have more rights in the caller's own namespaces
}

// CanFilterVLANs returns an error if the kernel cannot make bridges, or was built without
// CONFIG_BRIDGE_VLAN_FILTERING. If bridges can filter VLANs, or if that is not known, it returns
// nil. CanFilterVLANs makes no bridge: it asks for one with an existing name and an invalid
// default VLAN. A kernel with VLAN filtering refuses the VLAN. Another kernel ignores the VLAN
// and refuses the name. Until the bridge module is loaded, every kernel refuses the name first.
// So CanFilterVLANs first calls CanMake, which loads the module.
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
