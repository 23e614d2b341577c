// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// claimed reports whether a link belongs to a known attachment.
func (ev *evidence) claimed(index int) bool {
	return ev.any(func(a *Candidate) bool {
		return slices.ContainsFunc(a.links, func(l link) bool { return l.index == index })
	})
}

// strayIFBs finds ifb devices of the bandwidth plugins whose veth is gone, so that no filter
// redirects packets to them. An ADD makes the device before the filter. A link has no date, so
// gc removes a device only after it has known it for a while.
func (c *collector) strayIFBs() {
	host, err := c.k.Host()
	if err != nil {
		return // gather has reported the error
	}
	targets := redirects(host, c.links)
	for _, l := range c.links {
		at := l.Attrs()
		if l.Type() != "ifb" || !isOurKind(l) || at.Alias != "" || targets[at.Index] || c.claimed(at.Index) {
			continue
		}
		c.ageless("link", at.Name, "no traffic is redirected to it", key("ifb", fmt.Sprint(at.Name, at.Index)),
			func(_ context.Context, k *kernel.Kernel) error {
				host, err := k.Host()
				if err != nil {
					return err
				}
				return deleteLink(host, link{at.Name, at.Index})
			})
	}
}

// redirects returns the indexes of the links to which filters of other links redirect packets.
func redirects(host *nl.Conn, links []netlink.Link) map[int]bool {
	to := make(map[int]bool)
	for _, l := range links {
		filters, err := host.FilterList(l, netlink.MakeHandle(0xffff, 0)) // the ingress qdisc
		if err != nil {
			continue
		}
		for _, f := range filters {
			for _, a := range actions(f) {
				if m, ok := a.(*netlink.MirredAction); ok {
					to[m.Ifindex] = true
				}
			}
		}
	}
	return to
}

func actions(f netlink.Filter) []netlink.Action {
	switch f := f.(type) {
	case *netlink.U32:
		return f.Actions
	case *netlink.MatchAll:
		return f.Actions
	}
	return nil
}

// danglingVeths finds bridge ports whose other end is in a namespace that no process and no
// mount holds. Only an open file can keep such a namespace, of a dead container, and the veth
// with it. These ports have no owner's name, so gc only reports them.
func (c *collector) danglingVeths() {
	host, err := c.k.Host()
	if err != nil {
		return // gather has reported the error
	}
	var ports []netlink.Link
	for _, l := range c.links {
		at := l.Attrs()
		if l.Type() == "veth" && at.MasterIndex != 0 && at.Alias == "" && away(l) >= 0 && !c.claimed(at.Index) {
			ports = append(ports, l)
		}
	}
	if len(ports) == 0 {
		return
	}
	seen := make(map[int]bool) // the host's ids of the namespaces that this process can see
	err = life.Each(c.Paths.Proc, func(ns *netns.NS) error {
		id, err := host.GetNetNsIdByFd(ns.Fd())
		seen[id] = true
		return err
	})
	if err != nil {
		c.fail(err)
		return
	}
	for _, l := range ports {
		if id := away(l); !seen[id] && host.Lives(id) {
			c.unsure("link", l.Attrs().Name, "a port of a bridge whose other end is in no namespace of a process or a mount; its owner is unknown (ip link del removes it)", "")
		}
	}
}

// away returns the host's id of the namespace of the veth's other end. It is negative if the
// other end is in the link's own namespace, or in one that is ending. The interface index of
// the other end cannot tell, because other namespaces use the same numbers.
func away(l netlink.Link) int { return int(int32(l.Attrs().NetNsID)) } // the kernel's id is signed
