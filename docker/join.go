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

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// errTooOld is for options that need the container before its process starts.
var errTooOld = errors.New(optDNS + "=replace and " + optLabels + " need Docker 28 or later")

// Join implements cnm.NetworkDriver: it moves the interface to where libnetwork takes it
// from. If the sandbox does not exist yet (before Docker 28, when a container starts),
// the rest of the chain cannot run in it before the container's process starts, so it
// runs before the interface leaves the holding namespace.
func (d *Driver) Join(ctx context.Context, in *cnm.JoinRequest) (out *cnm.JoinResponse, err error) {
	err = d.enter(ctx, in.EndpointID, func(ctx context.Context, e *state.Endpoint) error {
		out, err = d.joinAt(ctx, in, e)
		return err
	})
	return out, err
}

func (d *Driver) joinAt(ctx context.Context, in *cnm.JoinRequest, e *state.Endpoint) (*cnm.JoinResponse, error) {
	n, err := d.network(e.Network)
	if err != nil {
		return nil, err
	}
	switch e.Phase {
	case state.Created, state.Joining, state.Joined:
	default:
		return nil, fmt.Errorf("endpoint %.12s cannot join: it is %s", e.ID, e.Phase)
	}
	e.Sandbox, e.Phase = in.SandboxKey, state.Joining
	if len(e.Asked) == 0 { // CreateEndpoint had none, as for internal networks
		if _, err := in.Options.Get(cnm.OptionPortMap, &e.Asked); err != nil {
			return nil, err
		}
	}
	var there bool
	if e.SandboxID, there, err = sandbox(e.Sandbox); err != nil {
		return nil, err
	}
	if there {
		if e.Gateways, err = d.gateways(e.Sandbox); err != nil {
			return nil, err
		}
	}
	if err := d.precheck(ctx, n, e, there); err != nil {
		return nil, fmt.Errorf("network %s: %w", n.list.Name, err)
	}
	if err := d.join(ctx, n, e, there && !n.hold); err != nil {
		return nil, errors.Join(err, d.save(e)) // Docker sends Leave and DeleteEndpoint, and the grace time starts now
	}
	if !there {
		go await(func(ctx context.Context) bool { return d.adoptOnce(ctx, in.EndpointID, in.SandboxKey) })
	}
	if e.Keeper != "" {
		go await(func(ctx context.Context) bool { return d.followOnce(ctx, in.EndpointID) })
	}
	out := joined(e.Kernel, n.Internal, n.gwbridge)
	out.InterfaceName = &cnm.InterfaceName{SrcName: e.Link, DstPrefix: n.prefix, DstName: e.IfName}
	return out, nil
}

// sandbox is live for a container's namespace. It refuses the host's: addresses and
// routes of a container would become the host's.
func sandbox(path string) (id netns.ID, there bool, err error) {
	id, there, err = live(path)
	if err != nil || !there {
		return id, there, err
	}
	host, err := netns.Current()
	if err != nil {
		return id, there, err
	}
	defer host.Close() //nolint:errcheck // read only
	own, err := host.ID()
	if err == nil && own == id {
		err = fmt.Errorf("SandboxKey %s is the network namespace of the host, and not of a container", path)
	}
	return id, there, err
}

// precheck refuses what would fail later, when the interface is in the sandbox: Docker
// shows the error of Join, but of no later call.
func (d *Driver) precheck(ctx context.Context, n *network, e *state.Endpoint, there bool) error {
	if !n.dns && n.labels == "" {
		return nil
	}
	if !there {
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
	return d.claimFile(ctx, e, d.resolvOf(c))
}

func (d *Driver) join(ctx context.Context, n *network, e *state.Endpoint, later bool) error {
	if err := d.save(e); err != nil {
		return err
	}
	if !later && e.Post != state.Done {
		if err := d.addPost(ctx, n, e, state.Where{NetNS: e.Hold, IfName: holdName}); err != nil {
			return err
		}
		if err := d.look(e); err != nil {
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

// Leave implements cnm.NetworkDriver: it undoes the changes in the sandbox while the
// interface is still there. Docker calls it twice after a failed Join, and without a
// Revoke before it after a restart with live-restore.
func (d *Driver) Leave(ctx context.Context, in *cnm.EndpointRequest) error {
	return d.known(ctx, in.EndpointID, d.left)
}

func (d *Driver) left(ctx context.Context, e *state.Endpoint) error {
	if e.Phase == state.Left || e.Phase == state.Deleting {
		return nil
	}
	n, err := d.network(e.Network)
	if err != nil {
		return err
	}
	e.Phase = state.Leaving
	if err := d.save(e); err != nil {
		return err
	}
	if err := d.leave(ctx, n, e); err != nil {
		// Docker ignores the error; DeleteEndpoint tries again.
		d.opts.Log("endpoint %.12s: leave: %v", e.ID, err)
	}
	d.notifyKeeper(ctx, n.list.Name, e, state.Where{})
	e.Phase = state.Left
	return d.save(e)
}

// leave undoes the parts that ran in the sandbox. A part that ran in the holding
// namespace is undone there, when the interface is back.
func (d *Driver) leave(ctx context.Context, n *network, e *state.Endpoint) error {
	err := errors.Join(d.restoreDNS(ctx, e), d.del(ctx, n, e, ports))
	if e.PostAt.NetNS == e.Hold {
		return err
	}
	return errors.Join(err, d.del(ctx, n, e, post))
}

// addresses are the two addresses that fit into Docker's answer: the first of each
// family. If the subnet has no route of its own, as with ptp, the address is a single
// one: otherwise libnetwork would make the subnet on-link.
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

// onLink says whether a subnet is reached without a gateway.
func onLink(s *state.Snapshot, subnet netip.Prefix) bool {
	return subnet.IsSingleIP() || slices.ContainsFunc(s.Routes, func(r state.Route) bool {
		return r.Table == unix.RT_TABLE_MAIN && !r.GW.IsValid() && r.Dst == subnet
	})
}

// joined is the answer to Join: gateways, and the routes of the main table whose gateway
// Docker can reach with the answer. The driver adds the rest, and what the answer cannot
// express, after the interface moved. An internal network gets neither gateway nor
// default route.
func joined(s *state.Snapshot, internal, gwbridge bool) *cnm.JoinResponse {
	out := &cnm.JoinResponse{DisableGatewayService: !gwbridge}
	var connected, hops []cnm.StaticRoute
	var gateways []netip.Addr // of the default routes
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
			continue // only a family's first
		}
		if *field = gw; !reached(s, connected, gw) {
			connected = append(connected, cnm.StaticRoute{Destination: netip.PrefixFrom(gw, gw.BitLen()), RouteType: cnm.Connected})
		}
	}
	hops = slices.DeleteFunc(hops, func(r cnm.StaticRoute) bool { return !reached(s, connected, r.NextHop) })
	out.StaticRoutes = unique(append(connected, hops...))
	return out
}

// reached says whether a gateway is on the link according to the answer to Join.
func reached(s *state.Snapshot, connected []cnm.StaticRoute, gw netip.Addr) bool {
	v4, v6 := addresses(s)
	return v4.IsValid() && v4.Masked().Contains(gw) || v6.IsValid() && v6.Masked().Contains(gw) ||
		slices.ContainsFunc(connected, func(r cnm.StaticRoute) bool { return r.Destination.Contains(gw) })
}

// unique keeps the first of several routes to one destination, since the second fails.
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
