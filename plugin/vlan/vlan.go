// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package vlan is the plugin `vlan`. The plugin gives a container an interface in one VLAN
// (802.1Q) of a link of the host.
//
// The kernel needs CONFIG_VLAN_8021Q.
package vlan

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "vlan"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "puts a container into a VLAN of a link",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "vlan: Required prevResult missing"},
	Delegates: true,
	Marked:    true,

	Validate: endpoint.ValidateChild,
	Warnings: doubts,

	Add:    add,
	Del:    endpoint.DetachLink,
	Check:  endpoint.CheckChild,
	GC:     endpoint.CollectLinks,
	Status: endpoint.ChildStatus,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	return plugin.ConfOf[Conf](r).Child().Attach(ctx, r)
}

// Child describes the attachment.
func (c *Conf) Child() *endpoint.Child {
	return &endpoint.Child{
		Kind:   &netlink.Vlan{VlanId: c.VlanID, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, DAD: c.EnableDad, DNS: c.DNS,
	}
}

// Conf is the configuration of this plugin.
type Conf struct {
	// Master is the parent link, required. Reference: DEL fails, and the address leaks, when it
	// is gone.
	Master string `json:"master"`

	// VlanID is the VLAN, 0 to 4094. A link has at most one interface for each VLAN. Reference:
	// same.
	VlanID int `json:"vlanId"`

	// MTU in bytes, at most the master's; 0 means the master's MTU. Reference: not in the result.
	MTU int `json:"mtu"`

	// LinkInContainer says that the master is in the container.
	// Reference: DEL fails when the namespace is gone.
	LinkInContainer bool `json:"linkInContainer"`

	// EnableDad makes the kernel look for duplicates of the IPv6 addresses, which takes 1-2 s.
	// Reference: none, it always looks for them.
	EnableDad bool `json:"enabledad"`

	// IPAM is the section of the IPAM plugin, required.
	// Reference: same.
	IPAM struct {
		// Type is the IPAM plugin. The other keys of the section belong to that plugin. Reference:
		// same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: always replaces
	// IPAM's.
	DNS spec.DNS `json:"dns"`
}

const maxVLAN = 4094

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(*plugin.Request) error {
	switch {
	case c.Master == "":
		return spec.Invalid(`"master" field is required. It specifies the host interface name to create the VLAN for`)
	case c.VlanID < 0 || c.VlanID > maxVLAN:
		return spec.Invalid("invalid VLAN ID %d (must be between 0 and %d inclusive)", c.VlanID, maxVLAN)
	case c.IPAM.Type == "":
		return spec.Invalid("failed to execute IPAM delegate: no plugin name provided")
	}
	return endpoint.ValidateMaster(c.Master)
}

func doubts(r *plugin.Request) []string {
	list := endpoint.MasterDoubts(r)
	if plugin.ConfOf[Conf](r).VlanID == 0 {
		list = append(list, "vlanId is 0: such frames have a priority and are in no VLAN")
	}
	return list
}
