// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const ifaMulticast = 7 // IFA_MULTICAST, include/uapi/linux/if_addr.h

// Joined lists the IPv6 multicast groups that a link is in.
func (c *Conn) Joined(index int) ([]netip.Addr, error) {
	groups, err := Retry(func() (groups []netip.Addr, err error) {
		head := vnl.NewIfAddrmsg(unix.AF_INET6)
		head.Index = uint32(index)
		msgs, err := c.request(unix.RTM_GETMULTICAST, unix.NLM_F_DUMP, 0, head)
		for _, m := range msgs {
			head := vnl.DeserializeIfAddrmsg(m)
			if int(head.Index) != index {
				continue
			}
			for kind, value := range attributes(m[head.Len():]) {
				if addr, ok := netip.AddrFromSlice(value); ok && kind == ifaMulticast {
					groups = append(groups, addr)
				}
			}
		}
		return groups, err
	})
	if err != nil {
		return nil, fmt.Errorf("list multicast groups of link %d: %w", index, err)
	}
	return groups, nil
}
