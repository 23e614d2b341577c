// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipvlan is the plugin `ipvlan`: a link of the container's own on top of a link of
// the host, with the same Ethernet address. It works where a switch or a cloud accepts only
// one address, which macvlan cannot do.
//
// The kernel needs CONFIG_IPVLAN. A link cannot be the master of ipvlans and of
// macvlans at once.
package ipvlan

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "ipvlan"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "puts a container on the segment of a link, with the link's Ethernet address",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates: true,

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
	if prev := r.Prev(); prev != nil {
		if err := inherit(c, prev, conf.IPAM.Type); err != nil {
			return nil, err
		}
	}
	if c.Addresses == nil && conf.IPAM.Type == "" {
		return nil, spec.Invalid("no plugin name provided")
	}
	return c.Attach(ctx, r)
}

// inherit takes the master from the previous result if the configuration has none, and the
// addresses if there is no IPAM plugin.
func inherit(c *endpoint.Child, prev *spec.Result, ipamType string) error {
	if c.Master == "" {
		if len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "" {
			return spec.Invalid("chained master failure. PrevResult lacks a single named interface")
		}
		c.Master = prev.Interfaces[0].Name
	}
	if ipamType == "" && len(prev.IPs) > 0 {
		c.Addresses = prev
	}
	return nil
}

func child(c *Conf) *endpoint.Child {
	return &endpoint.Child{
		Kind:   netstate.IPVlan{Mode: c.mode},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, AnyMTU: true, DAD: c.EnableDad, DNS: c.DNS,
		NoARP: c.mode != netlink.IPVLAN_MODE_L2,
	}
}

func del(ctx context.Context, r *plugin.Request) error { return endpoint.DetachLink(ctx, r, name) }

func check(ctx context.Context, r *plugin.Request) error {
	return child(plugin.ConfOf[Conf](r)).Check(ctx, r)
}

func gc(ctx context.Context, r *plugin.Request) error { return endpoint.CollectLinks(ctx, r, name) }

// status cannot check a master that the rest of a chain may provide.
func status(_ context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	return child(conf).Status(r, conf.IPAM.Type == "")
}
