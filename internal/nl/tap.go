// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"

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
