// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
)

// tries is how often a dump is started at most. A dump of some thousand links takes 20 ms. On
// a node where containers come and go, most dumps are interrupted.
const tries = 100

// Retry repeats a dump that the kernel interrupted because a table changed (NLM_F_DUMP_INTR).
// Retry tries at most 100 times.
func Retry[T any](dump func() (T, error)) (out T, err error) {
	for range tries {
		if out, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// The following methods replace those of Handle. They call Retry, so their callers need not.

// LinkList lists all links.
func (c *Conn) LinkList() ([]netlink.Link, error) { return Retry(c.Handle.LinkList) }

// FindLink returns the first link for which is returns true; nil when there is none.
func (c *Conn) FindLink(is func(netlink.Link) bool) (netlink.Link, error) {
	links, err := c.LinkList()
	if i := slices.IndexFunc(links, is); i >= 0 {
		return links[i], nil
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return nil, nil
}

// AddrList lists the addresses of a link, or of all links if link is nil.
func (c *Conn) AddrList(link netlink.Link, family int) ([]netlink.Addr, error) {
	return Retry(func() ([]netlink.Addr, error) { return c.Handle.AddrList(link, family) })
}

// RouteListFiltered lists the routes that match filter in the fields named by mask
// (RT_FILTER_*).
func (c *Conn) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return Retry(func() ([]netlink.Route, error) { return c.Handle.RouteListFiltered(family, filter, mask) })
}

// RuleList lists policy rules.
func (c *Conn) RuleList(family int) ([]netlink.Rule, error) {
	return Retry(func() ([]netlink.Rule, error) { return c.Handle.RuleList(family) })
}

// NeighList lists the neighbours of a link.
func (c *Conn) NeighList(index, family int) ([]netlink.Neigh, error) {
	return Retry(func() ([]netlink.Neigh, error) { return c.Handle.NeighList(index, family) })
}

// QdiscList lists the queueing disciplines of a link.
func (c *Conn) QdiscList(link netlink.Link) ([]netlink.Qdisc, error) {
	return Retry(func() ([]netlink.Qdisc, error) { return c.Handle.QdiscList(link) })
}

// FilterList lists the filters of a link that have this parent.
func (c *Conn) FilterList(link netlink.Link, parent uint32) ([]netlink.Filter, error) {
	return Retry(func() ([]netlink.Filter, error) { return c.Handle.FilterList(link, parent) })
}

// BridgeVlanList lists the VLANs of bridges and of their ports, by index of the link.
func (c *Conn) BridgeVlanList() (map[int32][]*vnl.BridgeVlanInfo, error) {
	return Retry(c.Handle.BridgeVlanList)
}
