// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Attributes has those values of links that plugins change. A key is the link's kind and name, and the attribute's name,
// as in "veth eth0 mtu".
type Attributes map[string]string

// TakeAttributes reads the links of the calling thread's network namespace.
func TakeAttributes() (Attributes, error) {
	h, err := nl.Host("/proc")
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{0: "none"}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	all := Attributes{}
	for _, l := range links {
		for name, value := range attributesOf(l.Attrs(), names) {
			all[line(l.Type(), l.Attrs().Name, name)] = value
		}
	}
	return all, nil
}

// attributesOf leaves out whether a link is up, because the kernel sets a link down that changes its namespace.
func attributesOf(a *netlink.LinkAttrs, names map[int]string) Attributes {
	flag := func(bit uint32) string { return fmt.Sprint(a.RawFlags&bit != 0) }
	return Attributes{
		"mtu": fmt.Sprint(a.MTU), "address": a.HardwareAddr.String(), "txqueuelen": fmt.Sprint(a.TxQLen),
		"alias": fmt.Sprintf("%q", a.Alias), "master": cmp.Or(names[a.MasterIndex], "elsewhere"),
		"promisc": flag(unix.IFF_PROMISC), "allmulticast": flag(unix.IFF_ALLMULTI), "multicast": flag(unix.IFF_MULTICAST), "noarp": flag(unix.IFF_NOARP),
	}
}

// changed begins the lines of Changed.
const changed = "changed"

// Changed lists the attributes that have another value than before, for links that exist now and existed before. A line is
// "changed veth eth0 mtu from 1500 to 1400".
func (a Attributes) Changed(before Attributes) (s State) {
	for key, now := range a {
		if was, ok := before[key]; ok && was != now {
			s = append(s, line(changed, key, "from", was, "to", now))
		}
	}
	slices.SortFunc(s, cmp.Compare[string])
	return s
}

// Lasting reports whether a line is of something that stays until a program changes it. The kernel itself may still be deleting
// the other objects.
func Lasting(l string) bool {
	return strings.HasPrefix(l, "file ") || strings.HasPrefix(l, changed+" ")
}
