// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/netns"
)

// enter takes the lock of an endpoint and reads it.
func (d *Driver) enter(ctx context.Context, id string) (e *state.Endpoint, release func(), err error) {
	release, err = d.locks.take(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if e, err = d.store.Endpoints.Get(id); err != nil {
		release()
		return nil, nil, err
	}
	return e, release, nil
}

// known calls do for an endpoint, with its lock and within the limit of a call. A missing
// endpoint is no error.
func (d *Driver) known(ctx context.Context, id string, do func(context.Context, *state.Endpoint) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	e, release, err := d.enter(ctx, id)
	if errors.Is(err, state.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	return do(ctx, e)
}

// errTooOld is for options that need the container before its process starts.
var errTooOld = errors.New(optDNS + "=replace and " + optLabels + " need Docker 28 or later")

// Join implements cnm.NetworkDriver: it moves the interface to where libnetwork takes it
// from. If the sandbox does not exist yet (before Docker 28, when a container starts),
// the rest of the chain cannot run in it before the container's process starts, so it
// runs before the interface leaves the holding namespace.
func (d *Driver) Join(ctx context.Context, in *cnm.JoinRequest) (*cnm.JoinResponse, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	e, release, err := d.enter(ctx, in.EndpointID)
	if err != nil {
		return nil, err
	}
	defer release()
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
	return d.joinAnswer(n, e), nil
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

func (d *Driver) joinAnswer(n *network, e *state.Endpoint) *cnm.JoinResponse {
	out := joined(e.Kernel, n.Internal, n.gwbridge)
	out.InterfaceName = &cnm.InterfaceName{SrcName: e.Link, DstPrefix: n.prefix, DstName: e.IfName}
	return out
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
	err := errors.Join(d.restoreDNS(ctx, e), d.delPorts(ctx, n, e))
	if e.PostAt.NetNS == e.Hold {
		return err
	}
	return errors.Join(err, d.delPost(ctx, n, e))
}

// undoParts is leave for an endpoint that is removed, in any phase.
func (d *Driver) undoParts(ctx context.Context, n *network, e *state.Endpoint) error {
	err := d.leave(ctx, n, e)
	if e.PostAt.NetNS == e.Hold && e.Post != "" {
		err = errors.Join(err, d.takeBack(e), d.delPost(ctx, n, e))
	}
	return err
}
