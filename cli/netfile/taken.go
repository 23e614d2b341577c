// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// Look reads what a new network must avoid: the other networks, and the addresses and
// routes of the host.
func Look(dir *chain.Dir, host *nl.Conn) (*Taken, error) {
	t := &Taken{Devices: map[string]Device{}}
	for _, l := range dir.Lists {
		i := Describe(l)
		if i.Interface != "" {
			t.Links = append(t.Links, i.Interface)
		}
		if i.Driver == driverMACVLAN || i.Driver == driverIPVLAN {
			t.Children = append(t.Children, Children{l.Name, i.Driver, i.Interface})
		}
		for _, s := range i.Subnets {
			t.Uses = append(t.Uses, Use{Prefix: s.Prefix, What: fmt.Sprintf("%s of network %s (%s)", s.Prefix, l.Name, l.File)})
		}
	}
	links, err := host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		t.Links = append(t.Links, l.Attrs().Name)
	}
	for _, l := range links {
		t.Devices[l.Attrs().Name] = deviceOf(l, links)
	}
	if err := t.addresses(host, names); err != nil {
		return nil, err
	}
	return t, t.routes(host, names)
}

// deviceOf describes a link. A VRF does not receive its ports' frames.
func deviceOf(l netlink.Link, all []netlink.Link) Device {
	a := l.Attrs()
	d := Device{MTU: a.MTU, Ethernet: a.EncapType == "ether"}
	for _, master := range all {
		if a.MasterIndex == master.Attrs().Index && master.Type() != "vrf" {
			d.Port = master.Attrs().Name
		}
	}
	return d
}

func (t *Taken) addresses(host *nl.Conn, names map[int]string) error {
	list, err := host.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		p := nl.PrefixOf(a.IPNet)
		if p.IsValid() && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsLoopback() {
			t.Uses = append(t.Uses, Use{Prefix: p.Masked(), What: fmt.Sprintf("the address %s of %s", p, names[a.LinkIndex])})
		}
	}
	return nil
}

// routes adds the routes of all tables, without default ones and the kernel's own.
func (t *Taken) routes(host *nl.Conn, names map[int]string) error {
	list, err := host.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range list {
		p := nl.PrefixOf(r.Dst)
		if r.Table == unix.RT_TABLE_LOCAL || !p.IsValid() || p.Bits() == 0 || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() || p.Addr().IsLoopback() {
			continue
		}
		what := fmt.Sprintf("the route %s by %s", p, cmp.Or(names[r.LinkIndex], "several ways"))
		t.Uses = append(t.Uses, Use{Prefix: p.Masked(), What: what, Through: r.Gw != nil || len(r.MultiPath) > 0 || r.Via != nil})
	}
	return nil
}

// Prefixes lists the prefixes of a network's addresses.
func (i Info) Prefixes() (list []netip.Prefix) {
	for _, s := range i.Subnets {
		if !slices.Contains(list, s.Prefix) {
			list = append(list, s.Prefix)
		}
	}
	return list
}
