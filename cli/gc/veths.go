// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// danglingVeths are bridge ports whose other end is in no namespace of a process or a
// mount: an open file keeps a dead container's namespace, and with it the pair. They carry
// no name, so gc reports them and keeps them.
func (c *collector) danglingVeths(ev *evidence) (list []*Stray) {
	host, err := ev.k.Host()
	if err != nil {
		return nil // gather has reported it
	}
	links, err := host.LinkList()
	ev.fail(err)
	var ports []netlink.Link
	for _, l := range links {
		at := l.Attrs()
		if l.Type() == "veth" && at.MasterIndex != 0 && at.Alias == "" && away(l) >= 0 && !ev.claimed(at.Index) {
			ports = append(ports, l)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	seen, err := c.namespaceIDs(host)
	if err != nil {
		ev.fail(err)
		return nil
	}
	for _, l := range ports {
		if id := away(l); !seen[id] && host.Lives(id) {
			list = append(list, &Stray{
				Object: Object{"link", l.Attrs().Name}, State: Unsure,
				Why: "a port of a bridge whose other end is in no namespace of a process or a mount; its owner is unknown (ip link del removes it)",
			})
		}
	}
	return list
}

// away is the id of the namespace of the pair's other end. It is negative when that is the
// link's own namespace, or one that is ending. The indexes of both ends occur in other
// namespaces too.
func away(l netlink.Link) int { return int(int32(l.Attrs().NetNsID)) } // the kernel's is signed

// namespaceIDs are the host's ids of the namespaces that this process sees.
func (c *collector) namespaceIDs(host *nl.Conn) (map[int]bool, error) {
	spaces, err := life.Namespaces(c.Paths.Proc)
	if err != nil {
		return nil, err
	}
	seen := make(map[int]bool)
	for _, path := range spaces {
		ns, err := netns.Open(path)
		if netns.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		id, err := host.GetNetNsIdByFd(ns.Fd())
		ns.Close() //nolint:errcheck // read only
		if err != nil {
			return nil, err
		}
		seen[id] = true
	}
	return seen, nil
}
