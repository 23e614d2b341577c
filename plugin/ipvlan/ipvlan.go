// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipvlan is the plugin `ipvlan`. The plugin gives a container a link on top of a link of
// the host. Both links have the same Ethernet address. So ipvlan works where a switch or a cloud
// accepts only one address. macvlan does not work there.
//
// The kernel needs CONFIG_IPVLAN. A link cannot be the master of ipvlan and macvlan links at
// the same time.
package ipvlan

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "ipvlan"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "puts a container on the segment of a link, with the link's Ethernet address",
	Conf:  func() any { return new(Conf) },

	NoPrev:    plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates: true,
	Marked:    true,

	Validate: validate,
	Warnings: endpoint.MasterDoubts,

	Add:    add,
	Del:    endpoint.DetachLink,
	Check:  endpoint.CheckChild,
	GC:     endpoint.CollectLinks,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	c := conf.Child()
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

// inherit takes from the previous result what the configuration lacks: the master and, if there
// is no IPAM plugin, the addresses.
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

// Child describes the attachment.
func (c *Conf) Child() *endpoint.Child {
	return &endpoint.Child{
		Kind:   &netlink.IPVlan{Mode: c.mode},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, AnyMTU: true, DAD: c.EnableDad, DNS: c.DNS,
		NoARP: c.mode != netlink.IPVLAN_MODE_L2,
	}
}

// status reports whether an ADD could work. It cannot check a master that an earlier plugin of a
// chain provides.
func status(_ context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	return conf.Child().Status(r, conf.IPAM.Type == "")
}

// Conf is the configuration of this plugin.
type Conf struct {
	// Master is the parent link. Default: in a chain the one interface of the previous result, else
	// the link of the default route. Reference: DEL fails if the default cannot be found; CHECK
	// always fails without master.
	Master string `json:"master"`

	// Mode is l2 (the container is on the master's segment), l3 (the host routes between the
	// containers, and the kernel sends no ARP or neighbour discovery for them) or l3s (like l3,
	// but the host's firewall sees the packets). Default: l2. Reference: same.
	Mode string `json:"mode"`

	// MTU in bytes; 0 means the master's MTU, also after it changes. It may be larger than the
	// master's. Reference: ignores values below 0; not in the result.
	MTU int `json:"mtu"`

	// LinkInContainer says that the master is in the container.
	// Reference: same.
	LinkInContainer bool `json:"linkInContainer"`

	// EnableDad makes the kernel look for duplicates of the IPv6 addresses, which takes 1-2 s.
	// Reference: none, it always looks for them.
	EnableDad bool `json:"enabledad"`

	// IPAM is the section of the IPAM plugin. In a chain it may be left out; then the link gets
	// the addresses of the previous result. Reference: same.
	IPAM struct {
		// Type is the IPAM plugin. The other keys of the section belong to that plugin. Reference:
		// same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: always replaces
	// IPAM's.
	DNS spec.DNS `json:"dns"`

	mode netlink.IPVlanMode
}

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(*plugin.Request) error {
	err := endpoint.ValidateMaster(c.Master)
	if err != nil {
		return err
	}
	c.mode, err = modeOf(c.Mode)
	return err
}

// validate checks the MTU, and the configuration against the addresses that IPAM would give.
// In a chain, an earlier plugin may have given the addresses.
func validate(r *plugin.Request) error {
	c := plugin.ConfOf[Conf](r)
	if c.IPAM.Type == "" && r.InList != nil && r.InList.First {
		return spec.Invalid("no plugin name provided")
	}
	return endpoint.ValidateChild(r)
}

func modeOf(s string) (netlink.IPVlanMode, error) {
	switch s {
	case "", "l2":
		return netlink.IPVLAN_MODE_L2, nil
	case "l3":
		return netlink.IPVLAN_MODE_L3, nil
	case "l3s":
		return netlink.IPVLAN_MODE_L3S, nil
	}
	return 0, spec.Invalid("unknown ipvlan mode: %q", s)
}
