// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
)

// dropWaiting drops the packets that wait for the neighbour of a pod, once the pod is closed. They passed
// the forward hook after the pod's route was made and before the pod was closed. If the first
// request for the neighbour was lost, the kernel repeats it after a second and then delivers the packets:
// the container would run, and its answers would open a connection. No packet waits if the pod was
// closed before it had a link.
func dropWaiting(r *plugin.Request, env *netstate.Env, c *closed) {
	if c.Close == [2]bool{} || c.Close == seenBy(r).closed || r.Session.Dry != nil {
		return
	}
	r.Session.OnFlush(func(context.Context) error {
		var errs []error
		for _, i := range r.Prev().Interfaces {
			if i.Sandbox == "" {
				errs = append(errs, forget(env, i.Name, c.Addrs))
			}
		}
		if err := errors.Join(errs...); err != nil {
			kernel.Warn(r, errors.New("packets from before the pod was closed may still reach it: "+err.Error()))
		}
		return nil
	})
}

// forget removes neighbours of a link of the host, with the packets that wait for them.
func forget(env *netstate.Env, name string, addrs []netip.Addr) error {
	link, err := env.Link(netstate.Host, name)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range addrs {
		err := env.Host.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice()})
		if err != nil && !nl.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
