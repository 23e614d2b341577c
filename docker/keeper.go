// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// keeperOf is the socket of the process that keeps a network's DHCP leases, "" without
// one. The keeper works on interfaces, so it must know where they are.
func keeperOf(list *chain.List) string {
	conf, err := dhcprpc.Parse(first(list).Raw)
	if err != nil || conf.Type != "dhcp" {
		return ""
	}
	return conf.Socket()
}

// keeperTime bounds a call of the keeper, which answers at once.
const keeperTime = 5 * time.Second

// errForeignKeeper is for the reference's daemon, which cannot follow a move.
var errForeignKeeper = errors.New("it is not patchbayd: the lease will neither be renewed nor given back")

// notifyKeeper sends the keeper the interface's place; the zero Where means that the
// interface is about to move. An error fails no call: a container whose lease is not kept
// works until it expires.
func (d *Driver) notifyKeeper(ctx context.Context, network string, e *state.Endpoint, at state.Where) {
	if e.Keeper != "" {
		d.logKeeper(e, callKeeper(ctx, network, e, at))
	}
}

func (d *Driver) logKeeper(e *state.Endpoint, err error) {
	if err != nil {
		d.opts.Log("endpoint %.12s: notify the keeper of DHCP leases at %s: %v", e.ID, e.Keeper, err)
	}
}

func callKeeper(ctx context.Context, network string, e *state.Endpoint, at state.Where) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	config, err := json.Marshal(map[string]string{"name": network})
	if err != nil {
		return err
	}
	k, err := dhcprpc.Dial(ctx, e.Keeper)
	if err != nil {
		return err
	}
	defer k.Close()
	if !k.Ours {
		return errForeignKeeper
	}
	_, err = k.Call(ctx, dhcprpc.Move, &dhcprpc.Args{ContainerID: e.ID, IfName: holdName, NetNS: at.NetNS, Path: at.IfName, Config: config})
	return err
}

// notifyReturn sends the keeper an interface that is back in the holding namespace, from
// where the keeper can give the lease back.
func (d *Driver) notifyReturn(ctx context.Context, network string, e *state.Endpoint) {
	c, err := d.inside(e.Hold)
	if err != nil || e.Keeper == "" {
		return
	}
	defer c.Close()
	if _, err := c.Link(holdName); err == nil {
		d.notifyKeeper(ctx, network, e, state.Where{NetNS: e.Hold, IfName: holdName})
	}
}

// notifyArrival sends the keeper an interface that is in its sandbox. It fails if it is
// not there yet.
func (d *Driver) notifyArrival(ctx context.Context, e *state.Endpoint) error {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := d.network(e.Network)
	if err != nil {
		return err
	}
	return callKeeper(ctx, n.list.Name, e, state.Where{NetNS: e.Sandbox, IfName: link.Attrs().Name})
}

// followOnce calls notifyArrival once the interface is in its sandbox with its final
// name, and says whether there is nothing left to wait for.
func (d *Driver) followOnce(ctx context.Context, endpointID string) bool {
	e, release, err := d.enter(ctx, endpointID)
	if err != nil {
		return true
	}
	defer release()
	if e.Phase != state.Joining && e.Phase != state.Joined {
		return true
	}
	err = d.notifyArrival(ctx, e)
	if errors.Is(err, errForeignKeeper) || errors.Is(err, dhcprpc.ErrDial) {
		d.logKeeper(e, err)
		return true
	}
	return err == nil
}
