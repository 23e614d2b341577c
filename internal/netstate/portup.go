// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// portUpTime is how long a port may take: the total wait of the reference.
const portUpTime = 2550 * time.Millisecond

// PortUp waits until a link of the host is operationally up: then its bridge forwards. A
// veth whose ends are both up is already up at the first look on Linux >= 6.8 (rtnl_getlink
// syncs the carrier), and some 0.1 ms later on older kernels.
type PortUp struct{ Link string }

// String names what Ensure waits for.
func (p PortUp) String() string { return "host: wait for " + p.Link + " to be up" }

// Ensure looks once, and listens for events only if the link is not up yet.
func (p PortUp) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Host.Link(p.Link)
	if err != nil {
		return nil, err
	}
	env.Remember(Host, link)
	if link.Attrs().OperState == netlink.OperUp {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, portUpTime)
	defer cancel()
	events, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribe(events, done); err != nil {
		return nil, fmt.Errorf("listen for link events: %w", err)
	}
	defer unsubscribe(events, done)
	up, err := until(ctx, events, func() (bool, error) { return p.isUp(env, link) })
	if err == nil && !up {
		err = fmt.Errorf("bridge port in error state: %s", link.Attrs().OperState)
	}
	return nil, err
}

func (p PortUp) isUp(env *Env, link netlink.Link) (bool, error) {
	now, err := env.Host.LinkAt(link.Attrs().Index)
	if err != nil {
		return false, fmt.Errorf("look at port %s: %w", p.Link, err)
	}
	link.Attrs().OperState = now.Attrs().OperState
	return now.Attrs().OperState == netlink.OperUp, nil
}

// Diff finds nothing: a container may take its own interface down.
func (p PortUp) Diff(context.Context, *Env) (string, error) { return "", nil }
