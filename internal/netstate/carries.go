// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Carries reports whether link is an end of a pair whose other end is up, in another
// namespace: then that namespace lives.
func Carries(link netlink.Link) bool {
	at := link.Attrs()
	return link.Type() == "veth" && at.RawFlags&unix.IFF_LOWER_UP != 0 && at.NetNsID >= 0
}
