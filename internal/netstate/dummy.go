// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import "github.com/vishvananda/netlink"

// Dummy is a device that drops what it sends.
type Dummy struct{}

// Type is the kind's name.
func (Dummy) Type() string { return "dummy" }

// String is as in the ip command.
func (Dummy) String() string { return "dummy" }

func (Dummy) link(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} }

func (Dummy) diff(netlink.Link) string { return "" }
