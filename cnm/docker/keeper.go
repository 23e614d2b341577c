// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/dhcpconf"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// keeperOf is the socket of who keeps the DHCP leases of a network, "" when it
// has none. The keeper looks after interfaces, and must be told where they are.
func keeperOf(list *chain.List) string {
	conf, err := dhcpconf.Parse(first(list).Raw)
	if err != nil || conf.Type != "dhcp" {
		return ""
	}
	return conf.Socket()
}

// keeperTime bounds what an endpoint waits for its keeper, who answers at once.
const keeperTime = 5 * time.Second

// errForeignKeeper is of the reference's daemon, which follows nothing.
var errForeignKeeper = errors.New("it is not patchbayd: the lease will neither be renewed nor given back")

// tell says to the keeper where the interface is; the zero Where, that it is
// about to be moved. No call fails with it: a container whose lease is not kept
// works until it expires.
func (d *Driver) tell(ctx context.Context, network string, e *state.Endpoint, at state.Where) {
	if e.Keeper != "" {
		d.untold(e, tell(ctx, network, e, at))
	}
}

func (d *Driver) untold(e *state.Endpoint, err error) {
	if err != nil {
		d.opts.Log("endpoint %.12s: tell the keeper of DHCP leases at %s: %v", e.ID, e.Keeper, err)
	}
}

func tell(ctx context.Context, network string, e *state.Endpoint, at state.Where) error {
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

// home tells the keeper of an interface that is back in the holding namespace,
// from where it can give the lease back.
func (d *Driver) home(ctx context.Context, network string, e *state.Endpoint) {
	c, err := d.inside(e.Hold)
	if err != nil || e.Keeper == "" {
		return
	}
	defer c.Close()
	if _, err := c.Link(holdName); err == nil {
		d.tell(ctx, network, e, state.Where{NetNS: e.Hold, IfName: holdName})
	}
}

// arrived tells the keeper of an interface that is in its sandbox. It fails while
// it is not.
func (d *Driver) arrived(ctx context.Context, e *state.Endpoint) error {
	c, link, err := d.sandboxLink(e)
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := d.network(e.Network)
	if err != nil {
		return err
	}
	return tell(ctx, n.list.Name, e, state.Where{NetNS: e.Sandbox, IfName: link.Attrs().Name})
}

// followOnce tells the keeper when the interface has arrived in its sandbox, under
// its last name, and says whether there is nothing to wait for any more.
func (d *Driver) followOnce(ctx context.Context, endpointID string) bool {
	e, release, err := d.enter(ctx, endpointID)
	if err != nil {
		return true
	}
	defer release()
	if e.Phase != state.Joining && e.Phase != state.Joined {
		return true
	}
	err = d.arrived(ctx, e)
	if errors.Is(err, errForeignKeeper) || errors.Is(err, dhcprpc.ErrDial) {
		d.untold(e, err)
		return true
	}
	return err == nil
}
