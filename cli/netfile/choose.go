// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Use is a range of addresses that is in use, and what uses it.
type Use struct {
	Prefix netip.Prefix
	What   string
	// Through is set for a route through a gateway. A new subnet may lie inside such a route,
	// because the operator may want that.
	Through bool
}

// InUse is what other networks and the host use, and a new network must avoid.
type InUse struct {
	Uses     []Use
	Links    []string // names of the host's interfaces, and of bridges in other networks' files
	Devices  map[string]Device
	Children []Children
}

// Children describes the macvlans or ipvlans of another network. They need not exist yet.
type Children struct{ Network, Driver, Parent string }

// first returns the first use that overlaps p.
func (t *InUse) first(p netip.Prefix) (Use, bool) {
	i := slices.IndexFunc(t.Uses, func(u Use) bool { return u.Prefix.Overlaps(p) })
	if i < 0 {
		return Use{}, false
	}
	return t.Uses[i], true
}

// pools returns the private ranges from which IPv4 subnets are chosen: first podman's, then
// smaller ones. Each has its first and its last subnet.
func pools() [3][2]netip.Addr {
	at := func(a, b, c byte) netip.Addr { return netip.AddrFrom4([4]byte{a, b, c}) }
	return [...][2]netip.Addr{{at(10, 89, 0), at(10, 255, 255)}, {at(172, 20, 0), at(172, 31, 255)}, {at(192, 168, 100), at(192, 168, 255)}}
}

// chosenBits is the prefix length of a chosen IPv4 subnet.
const chosenBits = 24

// free4 returns the first /24 that is not used.
func (t *InUse) free4() (netip.Prefix, error) {
	for _, pool := range pools() {
		for a := pool[0]; a.Compare(pool[1]) <= 0; {
			p := netip.PrefixFrom(a, chosenBits)
			if _, used := t.first(p); !used {
				return p, nil
			}
			a = prefix.Last(p).Next()
		}
	}
	return netip.Prefix{}, errors.New("no free subnet of private IPv4 addresses is left; choose one with --subnet")
}

// free6 chooses a unique local /64. Its global ID is 40 random bits, as RFC 4193 requires.
func (t *InUse) free6(random io.Reader) (netip.Prefix, error) {
	for range 16 {
		b := [16]byte{0: 0xfd}
		if _, err := io.ReadFull(random, b[1:6]); err != nil {
			return netip.Prefix{}, fmt.Errorf("draw a unique local prefix: %w", err)
		}
		p := netip.PrefixFrom(netip.AddrFrom16(b), 64)
		if _, used := t.first(p); !used {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("no free unique local /64 was found; choose one with --subnet")
}

// settle checks the subnets that were given, and chooses those that are missing.
func (w *wanted) settle(t *InUse, random io.Reader) (warnings []string, err error) {
	if w.child() {
		return nil, nil // the network uses the subnet of its parent, and so does the host
	}
	for _, s := range w.subnets {
		u, used := t.first(s.Prefix)
		switch {
		case used && u.Through && u.Prefix.Bits() < s.Prefix.Bits():
			warnings = append(warnings, fmt.Sprintf("subnet %s takes a part of %s", s.Prefix, u.What))
		case used:
			return nil, fmt.Errorf("subnet %s overlaps %s", s.Prefix, u.What)
		}
	}
	if len(w.subnets) == 0 || w.IPv6 && !w.has(true) {
		p, err := t.free4()
		if err != nil {
			return nil, err
		}
		w.subnets = slices.Insert(w.subnets, 0, Subnet{Prefix: p})
	}
	if w.IPv6 && !w.has(false) {
		p, err := t.free6(random)
		if err != nil {
			return nil, err
		}
		w.subnets = append(w.subnets, Subnet{Prefix: p})
	}
	return warnings, nil
}

// bridge returns the name of the bridge: the requested one, or the first free name pbN. pb0 is
// the bridge of the built-in network.
func (w *wanted) bridge(t *InUse) (string, error) {
	if w.Interface != "" {
		if slices.Contains(t.Links, w.Interface) {
			return "", fmt.Errorf("the interface %s exists already, or is another network's: two networks on one bridge are one network", w.Interface)
		}
		return w.Interface, nil
	}
	for n := 1; ; n++ {
		if name := fmt.Sprintf("pb%d", n); !slices.Contains(t.Links, name) {
			return name, nil
		}
	}
}

// ReadInUse reads what a new network must avoid: other networks, and the host's addresses and
// routes.
func ReadInUse(dir *chain.Dir, host *nl.Conn) (*InUse, error) {
	t := &InUse{Devices: map[string]Device{}}
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

// deviceOf describes a link. For a port of a VRF it names no master, because a VRF does not take
// over its ports' frames.
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

func (t *InUse) addresses(host *nl.Conn, names map[int]string) error {
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

// routes adds the routes of all tables, except default routes and those that the kernel makes
// itself.
func (t *InUse) routes(host *nl.Conn, names map[int]string) error {
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

// Prefixes lists the subnets from which a network assigns addresses.
func (i Info) Prefixes() (list []netip.Prefix) {
	for _, s := range i.Subnets {
		if !slices.Contains(list, s.Prefix) {
			list = append(list, s.Prefix)
		}
	}
	return list
}
