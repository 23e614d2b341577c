// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// danglingVeths are ports of bridges whose other end is in no namespace of a
// process or a mount: somebody's open file keeps a dead container's namespace,
// and with it the pair. They carry no name, so they are shown and stay.
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
		if l.Type() == "veth" && at.MasterIndex != 0 && at.Alias == "" && !ev.claimed(at.Index) {
			ports = append(ports, l)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	peers, err := c.peers(links)
	if err != nil {
		ev.fail(err)
		return nil
	}
	for _, l := range ports {
		if at := l.Attrs(); !peers[pair{at.ParentIndex, at.Index}] {
			list = append(list, &Stray{
				Object: Object{"link", at.Name}, State: Unsure,
				Why: "a port of a bridge whose other end is in no namespace of a process or a mount; nothing tells whose it is (ip link del removes it)",
			})
		}
	}
	return list
}

// pair is the indexes of a veth and of its peer.
type pair struct{ index, peer int }

// peers are the veths of every namespace, the host's included.
func (c *collector) peers(host []netlink.Link) (map[pair]bool, error) {
	found := make(map[pair]bool)
	note := func(links []netlink.Link) {
		for _, l := range links {
			if l.Type() == "veth" {
				found[pair{l.Attrs().Index, l.Attrs().ParentIndex}] = true
			}
		}
	}
	note(host)
	spaces, err := namespaces(c.Paths.Proc)
	if err != nil {
		return nil, err
	}
	for _, path := range spaces {
		links, err := linksIn(path, c.Paths.Proc)
		if err != nil {
			return nil, err
		}
		note(links)
	}
	return found, nil
}

func linksIn(path, proc string) ([]netlink.Link, error) {
	ns, err := netns.Open(path)
	if netns.Gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	conn, err := nl.In(ns, proc)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.LinkList()
}
