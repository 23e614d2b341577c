// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmtest

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

func bridgeOf(networkID string) string { return "cn" + networkID[:9] }

func makeBridge(name string, data []cnm.IPAMData) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		if _, lerr := netlink.LinkByName(name); lerr != nil {
			return err
		}
	}
	if err := ignoreRouters(name); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, p := range data {
		if p.Gateway.IsValid() {
			if err := netlink.AddrReplace(link, address(p.Gateway)); err != nil {
				return err
			}
		}
	}
	return netlink.LinkSetUp(link)
}

// ignoreRouters makes the host ignore router advertisements of containers, as Docker's own driver does. Only a host that
// forwards ignores them by default.
func ignoreRouters(bridge string) error {
	host, err := nl.Host("/proc")
	if err != nil {
		return err
	}
	defer host.Close()
	if err := host.SetSysctl("net/ipv6/conf/"+bridge+"/accept_ra", "0"); !errors.Is(err, fs.ErrNotExist) { // without IPv6 there is none
		return err
	}
	return nil
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = 2 // IFA_F_NODAD
	}
	return a
}

// routeSingles makes routes to single addresses, because no network of the bridge contains these.
func routeSingles(bridge string, e *endpoint) error {
	for _, p := range []netip.Prefix{e.Address, e.AddressIPv6} {
		if !p.IsValid() || !p.IsSingleIP() {
			continue
		}
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: address(p).IPNet, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
	}
	return nil
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if nl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// source returns the name that an endpoint's link has before Docker moves it.
func source(endpointID string) string { return "cs" + endpointID[:10] }

func (d *Driver) makeLink(n *network, networkID, endpointID string, e *endpoint) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = source(endpointID)
	if e.MacAddress != "" {
		mac, err := net.ParseMAC(e.MacAddress)
		if err != nil {
			return err
		}
		attrs.HardwareAddr = mac
	}
	switch d.Mode {
	case Macvlan:
		options, err := n.request.Options.Strings()
		if err != nil {
			return err
		}
		parent, err := netlink.LinkByName(options["parent"])
		if err != nil {
			return err
		}
		attrs.ParentIndex = parent.Attrs().Index
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
	case Veth, Self:
		return d.makeVeth(attrs, networkID, endpointID)
	}
	return nil
}

func (d *Driver) makeVeth(attrs netlink.LinkAttrs, networkID, endpointID string) error {
	bridge, err := netlink.LinkByName(bridgeOf(networkID))
	if err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "cp" + endpointID[:10]}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(pair.PeerName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(peer, bridge); err != nil {
		return err
	}
	return netlink.LinkSetUp(peer)
}

// doItself moves the link into the container as eth0, and sets its addresses.
func doItself(in *cnm.JoinRequest, e *endpoint) error {
	link, err := netlink.LinkByName(source(in.EndpointID))
	if err != nil {
		return err
	}
	ns, err := netns.Open(in.SandboxKey)
	if err != nil {
		return err
	}
	conn, err := nl.In(ns, "/proc")
	if err != nil {
		return err
	}
	defer conn.Close()
	host, err := nl.Host("/proc")
	if err != nil {
		return err
	}
	defer host.Close()
	if err := host.SetLink(link.Attrs().Index, nl.LinkChange{NetNS: ns.Fd(), Name: "eth0"}); err != nil {
		return err
	}
	inside, err := conn.Link("eth0")
	if err != nil {
		return err
	}
	for _, p := range []netip.Prefix{e.Address, e.AddressIPv6} {
		if p.IsValid() {
			if err := conn.AddrAdd(inside, address(p)); err != nil {
				return err
			}
		}
	}
	return conn.LinkSetUp(inside)
}
