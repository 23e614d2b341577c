// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package vlan is the plugin `vlan`: the container's interface is the interface to one VLAN
// (802.1Q) of a link of the host.
//
// The kernel needs CONFIG_VLAN_8021Q.
package vlan

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "vlan"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "puts a container into a VLAN of a link",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "vlan: Required prevResult missing"},
	Delegates: true,

	Validate: validate,
	Doubts:   doubts,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	return child(plugin.ConfOf[Conf](r)).Attach(ctx, r)
}

func child(c *Conf) *endpoint.Child {
	return &endpoint.Child{
		Kind:   netstate.VLAN{ID: c.VlanID, MTU: c.MTU},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, DAD: c.EnableDad, DNS: c.DNS,
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
