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

// tunDevice creates taps in the namespace of the thread that opens it.
const tunDevice = "/dev/net/tun"

// Tap is a tap device that persists when no process has it open.
type Tap struct {
	Name         string
	MultiQueue   bool    // a process may open several queues
	Owner, Group *uint32 // may open it besides root; nil: any process with CAP_NET_ADMIN
}

// AddTap creates a tap, down. One that exists is EBUSY or EEXIST.
func (c *Conn) AddTap(t Tap) error { return c.Do(t.Add) }

// Add creates the tap in the namespace of the calling thread. The process that opens the
// tap chooses whether frames carry a header (IFF_VNET_HDR, IFF_NO_PI). Until TUNSETPERSIST
// the device is deleted with the descriptor.
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

// CanTap returns why taps cannot be made here; nil when they can.
func CanTap() error {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tunDevice, err)
	}
	return unix.Close(fd)
}

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

// CanFilterVLANs returns an error if the kernel makes no bridges or was built without
// CONFIG_BRIDGE_VLAN_FILTERING; nil if it can filter, or if that is not known. It makes nothing. A kernel with VLANs refuses the default VLAN; one without ignores
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
