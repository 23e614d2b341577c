// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// In these experiments a container's link is on top of a link of the host. Here the host's link is
// one end of a veth pair.
const (
	segmentLink = "seg0" // the master
	segmentPeer = "seg1" // the end at which the rest of the segment is
)

// segmentChains are measured in turns, if the kernel supports them.
var segmentChains = [...]string{"macvlan4", "macvlan6", "ipvlan4"}

// links measures the plugins that put a container on a segment. If the kernel lacks something,
// the report has a note; scripts/bench-kernel measures it on another kernel.
func (l *lab) links() error {
	sets := l.want(reference, debian, ours)
	has := map[string]int{}
	for _, set := range sets {
		rep, err := l.ask(set, request{Op: "segment"})
		if err != nil {
			return err
		}
		has = rep.Counts
	}
	var chains []string
	for _, chain := range segmentChains {
		kind := chain[:len(chain)-1]
		if has[kind] == 0 {
			l.results.Notes[kind] = "this kernel has none; scripts/bench-kernel measures it on another"
			continue
		}
		chains = append(chains, chain)
	}
	return l.alternate(l.pick(8, 2), chains, reference, debian, ours)
}

// makeSegment makes the segment and sets both ends up. It counts the kinds of links that the
// kernel can put on the segment.
func makeSegment() (map[string]int, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = segmentLink
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: segmentPeer}); err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	for _, name := range []string{segmentLink, segmentPeer} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return segmentKinds()
}

func segmentKinds() (map[string]int, error) {
	master, err := netlink.LinkByName(segmentLink)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "probe", master.Attrs().Index
	has := map[string]int{}
	for _, link := range []netlink.Link{
		&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE},
		&netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVLAN_MODE_L2},
	} {
		err := netlink.LinkAdd(link)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			return nil, fmt.Errorf("try %s: %w", link.Type(), err)
		}
		has[link.Type()]++
	}
	return has, nil
}
