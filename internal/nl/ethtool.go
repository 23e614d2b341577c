// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TxChecksum reports whether a link leaves checksums of packets that it sends to the kernel's
// last step or to the network card.
func (c *Conn) TxChecksum(name string) (on bool, err error) {
	const get = 0x16 // ETHTOOL_GTXCSUM
	value, err := c.ethtool(name, get, 0)
	return value != 0, err
}

// SetTxChecksum is `ethtool -K name tx on|off`.
func (c *Conn) SetTxChecksum(name string, on bool) error {
	const set = 0x17 // ETHTOOL_STXCSUM
	value := uint32(0)
	if on {
		value = 1
	}
	_, err := c.ethtool(name, set, value)
	return err
}

// ethtool makes one call with a struct ethtool_value. The newer interface, by netlink, is not
// in the kernels whose offload is broken.
func (c *Conn) ethtool(name string, command, data uint32) (uint32, error) {
	value := [2]uint32{command, data}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	err := c.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("ethtool %s: %w", name, err)
	}
	return value[1], nil
}
