// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// errTooOld means that an option needs the sandbox before the container's process starts.
var errTooOld = errors.New(optDNS + "=replace and " + optLabels + " need Docker 28 or later")

// Join implements cnm.NetworkDriver. It moves the interface to the host, where libnetwork takes
// it. Before Docker 28, a container that starts has no sandbox yet. The rest of the chain must
// run before the container's process starts. So Join then runs it while the interface is still in
// the holding namespace.
func (d *Driver) Join(ctx context.Context, in *cnm.JoinRequest) (out *cnm.JoinResponse, err error) {
	err = d.enter(ctx, in.EndpointID, func(ctx context.Context, e *state.Endpoint) error {
		out, err = d.joinAt(ctx, in, e)
		return err
	})
	return out, err
}

func (d *Driver) joinAt(ctx context.Context, in *cnm.JoinRequest, e *state.Endpoint) (*cnm.JoinResponse, error) {
	n, err := d.networkOf(e)
	if err != nil {
		return nil, err
	}
	switch e.Phase {
	case state.Created, state.Joining, state.Joined:
	default:
		return nil, fmt.Errorf("endpoint %.12s cannot join: it is %s", e.ID, e.Phase)
	}
	e.Sandbox, e.Phase = in.SandboxKey, state.Joining
	if len(e.Asked) == 0 { // CreateEndpoint got no ports, as for an internal network
		if _, err := in.Options.Get(cnm.OptionPortMap, &e.Asked); err != nil {
			return nil, err
		}
	}
	var exists bool
	if e.SandboxID, exists, err = sandbox(e.Sandbox); err != nil {
		return nil, err
	}
	if exists {
		if e.Gateways, err = d.gateways(e.Sandbox); err != nil {
			return nil, err
		}
	}
	if err := d.precheck(ctx, n, e, exists); err != nil {
		return nil, fmt.Errorf("network %s: %w", n.list.Name, err)
	}
	if err := d.join(ctx, n, e, exists && !n.hold); err != nil {
		return nil, errors.Join(err, d.save(e)) // the grace period starts here; Docker now sends Leave and DeleteEndpoint
	}
	if !exists {
		go await(func(ctx context.Context) bool { return d.adoptOnce(ctx, in.EndpointID, in.SandboxKey) })
	}
	if e.Keeper != "" {
		go await(func(ctx context.Context) bool { return d.followOnce(ctx, in.EndpointID) })
	}
	out := joined(e.Kernel, n.Internal, n.gwbridge)
	out.InterfaceName = &cnm.InterfaceName{SrcName: e.Link, DstPrefix: n.prefix, DstName: e.IfName}
	return out, nil
}

// sandbox works like live, for the namespace of a container. It refuses the namespace of the
// host, because the host would get the container's addresses and routes.
func sandbox(path string) (id netns.ID, exists bool, err error) {
	id, exists, err = live(path)
	if err != nil || !exists {
		return id, exists, err
	}
	host, err := netns.Current()
	if err != nil {
		return id, exists, err
	}
	defer host.Close() //nolint:errcheck // read only
	own, err := host.ID()
	if err == nil && own == id {
		err = fmt.Errorf("SandboxKey %s is the network namespace of the host, and not of a container", path)
	}
	return id, exists, err
}

// precheck finds the errors that would otherwise occur after the interface is in the sandbox.
// Docker shows the user an error of Join, but no error of a later call.
func (d *Driver) precheck(ctx context.Context, n *network, e *state.Endpoint, exists bool) error {
	if !n.dns && n.labels == "" {
		return nil
	}
	if !exists {
		return errTooOld
	}
	d.identify(e, e.SandboxID)
	if err := d.label(n, e); err != nil || !n.dns {
		return err
	}
	c, err := d.containerFile(e)
	if err != nil {
		return fmt.Errorf("%s=replace: %w", optDNS, err)
	}
	return d.ownFile(ctx, e, d.resolvOf(c))
}

func (d *Driver) join(ctx context.Context, n *network, e *state.Endpoint, later bool) error {
	if err := d.save(e); err != nil {
		return err
	}
	if !later && e.Post != state.Done {
		if err := d.addPost(ctx, n, e, state.Where{NetNS: e.Hold, IfName: holdName}); err != nil {
			return err
		}
		if err := d.recordLink(e); err != nil {
			return err
		}
	}
	d.notifyKeeper(ctx, n.list.Name, e, state.Where{})
	if err := d.offer(e); err != nil {
		return err
	}
	e.Link, e.Phase = linkName(e.ID), state.Joined
	return d.save(e)
}

// Leave implements cnm.NetworkDriver. It undoes the changes in the sandbox while the interface is
// still there. After a failed Join, Docker calls Leave twice. After a restart with live-restore,
// Docker calls Leave without a Revoke before.
func (d *Driver) Leave(ctx context.Context, in *cnm.EndpointRequest) error {
	return d.enterIfExists(ctx, in.EndpointID, d.leaveEndpoint)
}

func (d *Driver) leaveEndpoint(ctx context.Context, e *state.Endpoint) error {
	if e.Phase == state.Left || e.Phase == state.Deleting {
		return nil
	}
	n, err := d.networkOf(e)
	if err != nil {
		return err
	}
	e.Phase = state.Leaving
	if err := d.save(e); err != nil {
		return err
	}
	if err := d.leave(ctx, n, e); err != nil {
		// Docker ignores an error, and DeleteEndpoint will try again.
		d.opts.Log("endpoint %.12s: leave: %v", e.ID, err)
	}
	d.notifyKeeper(ctx, n.list.Name, e, state.Where{})
	e.Phase = state.Left
	return d.save(e)
}

// leave undoes the parts that ran in the sandbox. A part that ran in the holding namespace is
// undone later, when the interface is there again.
func (d *Driver) leave(ctx context.Context, n *network, e *state.Endpoint) error {
	err := errors.Join(d.restoreDNS(ctx, e), d.del(ctx, n, e, ports))
	if e.PostAt.NetNS == e.Hold {
		return err
	}
	return errors.Join(err, d.del(ctx, n, e, post))
}

// addresses returns the two addresses that fit into the answer to Docker, the first one of each
// family. For a subnet, libnetwork adds a route. If the link has no such route, as with ptp, the
// address's prefix has full length.
func addresses(s *state.Snapshot) (v4, v6 netip.Prefix) {
	for _, a := range s.Addrs {
		if !onLink(s, a.Masked()) {
			a = netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
		}
		switch {
		case a.Addr().Is4() && !v4.IsValid():
			v4 = a
		case a.Addr().Is6() && !v6.IsValid():
			v6 = a
		}
	}
	return v4, v6
}

// onLink reports whether the link reaches a subnet without a gateway.
func onLink(s *state.Snapshot, subnet netip.Prefix) bool {
	return subnet.IsSingleIP() || slices.ContainsFunc(s.Routes, func(r state.Route) bool {
		return r.Table == unix.RT_TABLE_MAIN && !r.GW.IsValid() && r.Dst == subnet
	})
}

// joined returns the answer to Join. It has the gateways, and those routes of the main table
// whose gateway Docker can then reach. After Docker has moved the interface into the sandbox, the
// driver adds there what the answer cannot express: the other routes, addresses and neighbours.
// An internal network gets no gateway and no default route.
func joined(s *state.Snapshot, internal, gwbridge bool) *cnm.JoinResponse {
	out := &cnm.JoinResponse{DisableGatewayService: !gwbridge}
	var connected, hops []cnm.StaticRoute
	var gateways []netip.Addr // gateways of the default routes
	for _, r := range s.Routes {
		isDefault := r.Dst.Bits() == 0
		switch {
		case r.Table != unix.RT_TABLE_MAIN || isDefault && internal:
			continue
		case r.GW.IsValid() && isDefault:
			gateways = append(gateways, r.GW)
		case r.GW.IsValid():
			hops = append(hops, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.NextHop, NextHop: r.GW})
		case !r.Kernel:
			connected = append(connected, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.Connected})
		default:
			continue
		}
		out.DisableGatewayService = out.DisableGatewayService && !isDefault
	}
	for _, gw := range gateways {
		field := &out.Gateway
		if gw.Is6() {
			field = &out.GatewayIPv6
		}
		if field.IsValid() {
			continue // Docker accepts only one per family
		}
		if *field = gw; !reached(s, connected, gw) {
			connected = append(connected, cnm.StaticRoute{Destination: netip.PrefixFrom(gw, gw.BitLen()), RouteType: cnm.Connected})
		}
	}
	hops = slices.DeleteFunc(hops, func(r cnm.StaticRoute) bool { return !reached(s, connected, r.NextHop) })
	out.StaticRoutes = unique(append(connected, hops...))
	return out
}

// reached reports whether the link reaches a gateway directly, with the addresses and routes of
// the answer to Join.
func reached(s *state.Snapshot, connected []cnm.StaticRoute, gw netip.Addr) bool {
	v4, v6 := addresses(s)
	return v4.IsValid() && v4.Masked().Contains(gw) || v6.IsValid() && v6.Masked().Contains(gw) ||
		slices.ContainsFunc(connected, func(r cnm.StaticRoute) bool { return r.Destination.Contains(gw) })
}

// unique keeps only the first of several routes to one destination, because Docker could not add
// a second one.
func unique(in []cnm.StaticRoute) (out []cnm.StaticRoute) {
	seen := map[netip.Prefix]bool{}
	for _, r := range in {
		if !seen[r.Destination] {
			seen[r.Destination] = true
			out = append(out, r)
		}
	}
	return out
}
