// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// result returns the result of the ADD. It describes the link that was moved into the container.
// If there is no such link, it describes what the driver itself did in the container.
func (w *work) result() (*spec.Result, error) {
	result := w.compile()
	if w.at.Link != nil {
		return result, endpoint.Describe(w.env, netstate.Sandbox, &result.Interfaces[0])
	}
	links, err := w.appeared()
	if err != nil {
		return nil, err
	}
	if len(links) == 0 { // the driver made no link, like a driver for the host's own network
		result.Interfaces = nil
		for i := range result.IPs {
			result.IPs[i].Interface = nil
		}
		return result, nil
	}
	return w.found(result, links)
}

// appeared returns the links that the container did not have before the ADD. The link that
// CNI_IFNAME names comes first.
func (w *work) appeared() (list []netlink.Link, err error) {
	links, err := w.env.Sandbox.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links of the container: %w", err)
	}
	for _, l := range links {
		switch {
		case w.old[l.Attrs().Index]:
		case l.Attrs().Name == w.r.IfName:
			list = append([]netlink.Link{l}, list...)
		default:
			list = append(list, l)
		}
	}
	return list, nil
}

// found describes what a driver itself did in the container. found reads this from the kernel,
// because the driver's answer does not contain it.
func (w *work) found(result *spec.Result, links []netlink.Link) (*spec.Result, error) {
	result.Interfaces, result.IPs, result.Routes = nil, nil, nil
	for n, l := range links {
		a := l.Attrs()
		result.Interfaces = append(result.Interfaces, spec.Interface{
			Name: a.Name, Mac: a.HardwareAddr.String(), MTU: a.MTU, Sandbox: w.r.NetNS,
		})
		routes, err := w.env.Sandbox.LinkRoutes(a.Index, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, err
		}
		addrs, err := w.env.Sandbox.Addrs(a.Index)
		if err != nil {
			return nil, err
		}
		for _, addr := range addrs {
			if addr.Prefix.Addr().IsLinkLocalUnicast() {
				continue
			}
			at := n
			result.IPs = append(result.IPs, spec.IPConfig{Interface: &at, Address: addr.Prefix, Gateway: defaultGateway(routes, addr.Prefix.Addr().Is4())})
		}
		result.Routes = append(result.Routes, madeRoutes(routes)...)
	}
	return result, nil
}

// defaultGateway returns the next hop of the first default route of a family.
func defaultGateway(routes []netlink.Route, want4 bool) netip.Addr {
	for _, r := range routes {
		if gw := nl.AddrOf(r.Gw); gw.IsValid() && gw.Is4() == want4 && prefixOf(r).Bits() == 0 {
			return gw
		}
	}
	return netip.Addr{}
}

// madeRoutes returns the routes that the kernel did not make itself.
func madeRoutes(routes []netlink.Route) (list []spec.Route) {
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_KERNEL || r.Protocol == unix.RTPROT_RA {
			continue
		}
		route := spec.Route{Dst: prefixOf(r), GW: nl.AddrOf(r.Gw), Priority: r.Priority}
		if !route.GW.IsValid() {
			scope := int(r.Scope)
			route.Scope = &scope
		}
		list = append(list, route)
	}
	return list
}

// prefixOf returns the destination of a route. In some default routes the netlink library leaves
// the destination out.
func prefixOf(r netlink.Route) netip.Prefix {
	if r.Dst != nil {
		return nl.PrefixOf(r.Dst)
	}
	return spec.DefaultDst(r.Family != unix.AF_INET6)
}

// nodes returns the nodes that a swarm's driver gets. This node comes first.
func (c *Conf) nodes() (list []cnm.DiscoveryData, err error) {
	if c.NodeAddress == "" && len(c.Nodes) == 0 {
		return nil, nil
	}
	if !c.EmulateSwarm || c.NodeAddress == "" {
		return nil, spec.Invalid("nodes goes with nodeAddress, and both with emulateSwarm")
	}
	for i, text := range append([]string{c.NodeAddress}, c.Nodes...) {
		a, err := netip.ParseAddr(text)
		if err != nil || slices.ContainsFunc(list, func(d cnm.DiscoveryData) bool { return d.Address == a.String() }) {
			return nil, spec.Invalid("node %.80q: want the addresses of different nodes", text)
		}
		d := cnm.DiscoveryData{Address: a.String(), Self: i == 0}
		if d.Self {
			d.BindAddress = d.Address
		}
		list = append(list, d)
	}
	return list, nil
}

// discover tells the driver which nodes have come and gone since the last call. A driver without
// this method is no error.
func (w *work) discover(ctx context.Context) error {
	want, err := w.conf.nodes()
	if err != nil || slices.Equal(want, w.net.Nodes) {
		return err
	}
	for _, n := range w.net.Nodes {
		if !slices.Contains(want, n) {
			if err := remote.Answered(w.r, w.client.DiscoverDelete(ctx, discovered(n))); err != nil {
				return err
			}
		}
	}
	for _, n := range want {
		if !slices.Contains(w.net.Nodes, n) {
			if err := remote.Answered(w.r, w.client.DiscoverNew(ctx, discovered(n))); err != nil {
				return err
			}
		}
	}
	w.net.Nodes = want
	return w.saveNetwork()
}

func discovered(n cnm.DiscoveryData) *cnm.DiscoveryRequest {
	return &cnm.DiscoveryRequest{DiscoveryType: cnm.DiscoverNode, DiscoveryData: n}
}
