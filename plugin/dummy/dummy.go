// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dummy is the plugin `dummy`. The plugin makes a device that drops everything it
// sends. Such a device holds addresses of a container that must not depend on any link. The
// kernel needs CONFIG_DUMMY.
package dummy

import (
	"cmp"
	"context"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "dummy"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "gives a container addresses on a device that leads nowhere",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "dummy: Required prevResult missing"},
	Delegates: true,
	Marked:    true,

	Validate: validate,

	Add:    add,
	Del:    endpoint.DetachLink,
	Check:  check,
	GC:     endpoint.CollectLinks,
	Status: status,
}

// Conf is the configuration of this plugin.
type Conf struct {
	IPAM struct {
		// Type is the IPAM plugin; required. The other keys of the section belong to that
		// plugin. Reference: same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: ignored, the result
	// has IPAM's.
	DNS spec.DNS `json:"dns"`
}

// Load validates the configuration.
func (c *Conf) Load(*plugin.Request) error {
	if c.IPAM.Type == "" {
		return spec.Invalid("dummy interface requires an IPAM configuration")
	}
	return nil
}

// validate checks the configuration against the addresses that IPAM would give.
func validate(r *plugin.Request) error { return endpoint.ValidateSegment(r, 0) }

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	return single(r, endpoint.AddressesOf(k, r.Owner).Container()).Attach(ctx, r, env)
}

// single describes the attachment. A new interface gets a MAC derived from the owner, so a
// repeated ADD gives the same MAC.
func single(r *plugin.Request, mac net.HardwareAddr) *endpoint.Single {
	link := netstate.Child{
		Kind: &netlink.Dummy{}, Name: r.IfName, Temp: endpoint.TempName(r.Owner), MasterIn: netstate.Sandbox,
		MAC: mac, Owner: r.Owner, NetNS: r.NetNS,
	}
	return &endpoint.Single{
		DNS: plugin.ConfOf[Conf](r).DNS, MAC: mac, Link: netstate.State{link},
		Exists: spec.Errorf(spec.CodeInternal, "failed to create dummy: %w", unix.EEXIST),
	}
}

func check(ctx context.Context, r *plugin.Request) error {
	return endpoint.CheckFound(ctx, r, func(mac net.HardwareAddr) *endpoint.Single { return single(r, mac) })
}

func status(_ context.Context, r *plugin.Request) error {
	return cmp.Or(endpoint.KernelMakes(r, name), endpoint.Ready(r))
}
