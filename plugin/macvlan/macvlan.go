// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package macvlan is the plugin `macvlan`: a link of the container's own, with an Ethernet
// address of its own, on top of a link of the host. The container is on the host's segment
// as if it were plugged into the same switch.
//
// The kernel needs CONFIG_MACVLAN. The host does not reach its own children
// through their master; give it a macvlan of its own for that.
package macvlan

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "macvlan"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "puts a container on the segment of a link, with its own Ethernet address",
	Layer2:       true,
	Capabilities: []string{"mac"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "required prevResult missing"},
	Delegates:    true,

	Validate: validate,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	c := child(conf)
	if c.MAC == nil && conf.mode != netlink.MACVLAN_MODE_PASSTHRU { // that has the master's
		c.MAC = endpoint.AddressesOf(r).Container()
	}
	return c.Attach(ctx, r)
}

func child(c *Conf) *endpoint.Child {
	return &endpoint.Child{
		Kind:   netstate.Macvlan{Mode: c.mode, BCQueueLen: c.BcQueueLen},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, MAC: c.mac, DAD: c.EnableDad, DNS: c.DNS,
	}
}

func del(ctx context.Context, r *plugin.Request) error { return endpoint.DetachLink(ctx, r, name) }

func check(ctx context.Context, r *plugin.Request) error {
	return child(plugin.ConfOf[Conf](r)).Check(ctx, r)
}

func gc(ctx context.Context, r *plugin.Request) error { return endpoint.CollectLinks(ctx, r, name) }

func status(_ context.Context, r *plugin.Request) error {
	return child(plugin.ConfOf[Conf](r)).Status(r, false)
}
