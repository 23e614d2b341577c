// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LinkChange is what SetLink changes; zero values change nothing.
type LinkChange struct {
	Name   string
	Alias  *string // ifalias; "" removes it
	MAC    net.HardwareAddr
	MTU    int // bytes
	Master int // index of the bridge it becomes a port of
	NetNS  int // descriptor of the namespace it moves to; Name is its name there
	Down   bool
	Up     bool
}

// SetLink changes a link in one message, which the kernel applies under one lock: first the
// namespace, then the address, MTU, name, and last up or down. When it fails in the middle,
// the earlier changes remain.
func (c *Conn) SetLink(index int, to LinkChange) error {
	head := linkHead(index)
	parts := []vnl.NetlinkRequestData{head}
	if to.Up || to.Down {
		head.Change = unix.IFF_UP
	}
	if to.Up {
		head.Flags = unix.IFF_UP
	}
	if to.NetNS > 0 {
		parts = append(parts, attr32(unix.IFLA_NET_NS_FD, uint32(to.NetNS)))
	}
	if len(to.MAC) > 0 {
		parts = append(parts, attr(unix.IFLA_ADDRESS, to.MAC))
	}
	if to.MTU > 0 {
		parts = append(parts, attr32(unix.IFLA_MTU, uint32(to.MTU)))
	}
	if to.Name != "" {
		parts = append(parts, attr(unix.IFLA_IFNAME, vnl.ZeroTerminated(to.Name)))
	}
	if to.Alias != nil {
		parts = append(parts, attr(unix.IFLA_IFALIAS, []byte(*to.Alias)))
	}
	if to.Master > 0 {
		parts = append(parts, attr32(unix.IFLA_MASTER, uint32(to.Master)))
	}
	_, err := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, parts...)
	return err
}
