// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package macvlan is the plugin `macvlan`. The plugin gives a container a link on top of a link
// of the host, with a different Ethernet address. The container is on the host's segment, as if
// it were connected to the same switch.
//
// The kernel needs CONFIG_MACVLAN. The host cannot reach the containers through their master. If
// the host must reach them, give the host a macvlan link too.
package macvlan

import (
	"cmp"
	"context"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "macvlan"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "puts a container on the segment of a link, with its own Ethernet address",
	Layer2:       true,
	Capabilities: []string{"mac"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "required prevResult missing"},
	Delegates:    true,
	Marked:       true,

	Validate: endpoint.ValidateChild,
	Warnings: endpoint.MasterDoubts,

	Add:    add,
	Del:    endpoint.DetachLink,
	Check:  endpoint.CheckChild,
	GC:     endpoint.CollectLinks,
	Status: endpoint.ChildStatus,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	c := conf.Child()
	if c.MAC == nil && conf.mode != netlink.MACVLAN_MODE_PASSTHRU { // in passthru mode the link has the master's MAC
		c.MAC = endpoint.AddressesOf(kernel.Of(r), r.Owner).Container()
	}
	return c.Attach(ctx, r)
}

// Child describes the attachment.
func (c *Conf) Child() *endpoint.Child {
	return &endpoint.Child{
		Kind:   &netlink.Macvlan{Mode: c.mode, BCQueueLen: c.BcQueueLen},
		Master: c.Master, InContainer: c.LinkInContainer, MTU: c.MTU, MAC: c.mac, DAD: c.EnableDad, DNS: c.DNS,
	}
}

// Conf is the configuration of this plugin.
type Conf struct {
	// Master is the parent link. Default: the link of the default route. Reference: same.
	Master string `json:"master"`

	// Mode decides which containers on the same master a container can reach: bridge (all),
	// private (none), vepa (those to which the switch sends frames back). With passthru, the
	// container is the only one on the master and gets all traffic. Default: bridge. Reference:
	// same; passthru loses mac.
	Mode string `json:"mode"`

	// MTU in bytes, at most the master's; 0 means the master's MTU. Reference: not in the result.
	MTU int `json:"mtu"`

	// Mac is the Ethernet address. If it is missing, it is derived from the owner: a repeated ADD
	// gives the same address, and every node gives another. Reference: if it is missing, a random
	// one, the same on clones of a machine.
	Mac string `json:"mac"`

	// LinkInContainer says that the master is in the container.
	// Reference: same.
	LinkInContainer bool `json:"linkInContainer"`

	// BcQueueLen is how many broadcast frames may wait at the master; 0 means the kernel's
	// default, 1000. The largest value of all containers on the master is used. Linux >= 5.11.
	// Reference: same.
	BcQueueLen uint32 `json:"bcqueuelen"`

	// EnableDad makes the kernel look for duplicates of the IPv6 addresses, which takes 1-2 s.
	// Reference: none, it always looks for them.
	EnableDad bool `json:"enabledad"`

	// IPAM is the section of the IPAM plugin. Without a type the container gets no addresses
	// (layer 2 only). Reference: same.
	IPAM struct {
		// Type is the IPAM plugin. The other keys of the section belong to that plugin. Reference:
		// same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: always replaces
	// IPAM's.
	DNS spec.DNS `json:"dns"`

	RuntimeConfig struct {
		// Mac overrides MAC= in CNI_ARGS, which overrides mac.
		// Reference: same.
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`

	mac  net.HardwareAddr
	mode netlink.MacvlanMode
}

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(r *plugin.Request) error {
	err := endpoint.ValidateMaster(c.Master)
	if err != nil {
		return err
	}
	if c.mode, err = modeOf(c.Mode); err != nil {
		return err
	}
	arg, err := endpoint.MACArg(r)
	if err != nil {
		return err
	}
	c.Mac = cmp.Or(c.RuntimeConfig.Mac, arg, c.Mac)
	c.mac, err = parseMAC(c.Mac)
	return err
}

func modeOf(s string) (netlink.MacvlanMode, error) {
	switch s {
	case "", "bridge":
		return netlink.MACVLAN_MODE_BRIDGE, nil
	case "private":
		return netlink.MACVLAN_MODE_PRIVATE, nil
	case "vepa":
		return netlink.MACVLAN_MODE_VEPA, nil
	case "passthru":
		return netlink.MACVLAN_MODE_PASSTHRU, nil
	}
	return 0, spec.Invalid("unknown macvlan mode: %q", s)
}

// parseMAC parses an Ethernet address. For "" it returns nil.
func parseMAC(s string) (net.HardwareAddr, error) {
	if s == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(s)
	switch {
	case err != nil:
		return nil, spec.Invalid("invalid args %.40v for MAC addr: %w", s, err)
	case len(mac) != 6 || endpoint.ValidateMAC(mac) != nil:
		return nil, spec.Invalid("invalid args %.40v for MAC addr: want six bytes, the first one even, not all zero", s)
	}
	return mac, nil
}
