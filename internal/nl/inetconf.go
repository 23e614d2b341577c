// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IPv4Conf is the number of a setting in net/ipv4/conf/LINK (include/uapi/linux/ip.h). A message
// reads or writes it, which takes less time than to open the sysctl (see procfs).
type IPv4Conf int

// These are the settings that plugins use.
const (
	ARPNotify     IPv4Conf = 22
	RouteLocalnet IPv4Conf = 26
)

// IPv4Setting asks for a setting of a link.
func (c *Conn) IPv4Setting(index int, conf IPv4Conf) (value int32, err error) {
	msgs, err := c.request(unix.RTM_GETLINK, 0, 0, linkHead(index), attr32(unix.IFLA_EXT_MASK, skipStats))
	if err != nil {
		return 0, fmt.Errorf("read IPv4 settings of link %d: %w", index, err)
	}
	for _, m := range msgs {
		list := find(m[unix.SizeofIfInfomsg:], unix.IFLA_AF_SPEC, unix.AF_INET, unix.IFLA_INET_CONF)
		if at := 4 * (int(conf) - 1); len(list) >= at+4 {
			return int32(vnl.NativeEndian().Uint32(list[at:])), nil
		}
	}
	return 0, fmt.Errorf("read IPv4 settings of link %d: the kernel sent none", index) // the link's MTU is below 68
}

// SetIPv4 changes a setting of a link.
func (c *Conn) SetIPv4(index int, conf IPv4Conf, value int32) error {
	_, err := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, linkHead(index), conf.attr(value))
	return err
}

// attr returns the part of a message about a link that changes the setting.
func (conf IPv4Conf) attr(value int32) *vnl.RtAttr {
	spec := attr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil).AddRtAttr(int(conf), vnl.Uint32Attr(uint32(value)))
	return spec
}
