// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package tap is the plugin `tap`. The plugin makes a tap device in the container's namespace,
// for a virtual machine or another program that sends and receives frames. The plugin uses an
// ioctl on /dev/net/tun (CONFIG_TUN) and needs no other program.
package tap

import (
	"cmp"
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "tap"

// kind is the netlink library's name of a tap.
const kind = "tuntap"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "makes a tap device in the container, for a virtual machine",
	Layer2:       true,
	Capabilities: []string{"mac"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Check: "Required prevResult missing"},
	Delegates:    true,
	Marked:       true,

	Helper: helper,

	Validate: validate,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	mac := conf.mac
	if mac == nil {
		mac = endpoint.AddressesOf(k, r.Owner).Container()
	}
	link := object(r, conf, mac)
	if conf.SelinuxContext != "" {
		l, err := newLabelled(r, conf.SelinuxContext)
		if err != nil {
			return nil, err
		}
		env.AddTap, link.Label = l.add, l.label
	}
	return single(r, conf, link).Attach(ctx, r, env)
}

func object(r *plugin.Request, conf *Conf, mac net.HardwareAddr) netstate.Tap {
	return netstate.Tap{
		Tap: nl.Tap{Name: r.IfName, MultiQueue: conf.MultiQueue, Owner: conf.Owner, Group: conf.Group},
		MAC: mac, MTU: conf.MTU, Mark: r.Owner, Temp: endpoint.TempName(r.Owner), Bridge: conf.Bridge,
	}
}

func single(r *plugin.Request, conf *Conf, link netstate.Tap) *endpoint.Single {
	return &endpoint.Single{
		DNS: conf.DNS, MAC: link.MAC, MTU: conf.MTU, Link: netstate.State{link},
		Exists: spec.Errorf(spec.CodeInternal, "failed to rename tap to %q: %w", r.IfName, unix.EEXIST),
	}
}

func del(ctx context.Context, r *plugin.Request) error {
	return endpoint.DetachSingle(ctx, r, endpoint.DeleteLink(r, kind))
}

func check(ctx context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	return endpoint.CheckFound(ctx, r, func(mac net.HardwareAddr) *endpoint.Single { return single(r, conf, object(r, conf, mac)) })
}

func gc(ctx context.Context, r *plugin.Request) error {
	return endpoint.CollectSingle(ctx, r, endpoint.DeleteLink(r, kind))
}

// status returns an error on a node without /dev/net/tun, and for a label on a node without
// SELinux.
func status(_ context.Context, r *plugin.Request) error {
	if err := nl.CanTap(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "taps cannot be made: %w", err)
	}
	if conf := plugin.ConfOf[Conf](r); conf.SelinuxContext != "" {
		if _, err := newLabelled(r, conf.SelinuxContext); err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "%w", err)
		}
	}
	return endpoint.Ready(r)
}

// Conf is the configuration of this plugin.
type Conf struct {
	// MultiQueue lets the program that opens the tap open several queues. Reference: same.
	MultiQueue bool `json:"multiQueue"`

	// MTU in bytes; 0 means the kernel's default. Reference: ignored when owner and group are
	// both given; not in the result.
	MTU int `json:"mtu"`

	// Mac is the Ethernet address of the tap. If it is missing, it is derived from the owner, and
	// a repeated ADD gives the same. Reference: ignored when owner and group are both given; if
	// empty, the kernel chooses one.
	Mac string `json:"mac"`

	// Owner is the id of the user who may open the tap. Without owner, no user gets the right.
	// Reference: same; without owner, ip(8) of iproute2 makes the tap.
	Owner *uint32 `json:"owner"`

	// Group is the id of the group that may open the tap. Reference: same; without group, ip(8)
	// of iproute2 makes the tap.
	Group *uint32 `json:"group"`

	// SelinuxContext is the label of the process that makes the tap. The SELinux policy checks it
	// when a program opens the tap. Reference: same; ip(8) of iproute2 is that process.
	SelinuxContext string `json:"selinuxContext"`

	// Bridge is a bridge in the container; the tap becomes a port of it.
	// Reference: same.
	Bridge string `json:"bridge"`

	// IPAM is the section of the IPAM plugin. Without a type the tap gets no addresses (layer 2
	// only). Reference: same.
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

	mac net.HardwareAddr
}

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(r *plugin.Request) error {
	arg, err := endpoint.MACArg(r)
	if err != nil {
		return err
	}
	c.Mac = cmp.Or(c.RuntimeConfig.Mac, arg, c.Mac)
	return c.validate()
}

// mostMTU leaves room for an Ethernet header in a frame that is read from a tap.
const mostMTU = endpoint.MostMTU - 14

// nobody is the kernel's number for "no user" and "no group".
const nobody = 1<<32 - 1

func noID(id *uint32) bool { return id != nil && *id == nobody }

// validate checks the configuration against the addresses that IPAM would give.
func validate(r *plugin.Request) error {
	return endpoint.ValidateSegment(r, plugin.ConfOf[Conf](r).MTU)
}

func (c *Conf) validate() (err error) {
	if c.Mac != "" {
		if c.mac, err = net.ParseMAC(c.Mac); err == nil && len(c.mac) != 6 {
			err = &net.AddrError{Err: "not an Ethernet address", Addr: c.Mac}
		}
	}
	switch {
	case err != nil:
		return spec.Invalid("invalid args %v for MAC addr: %w", c.Mac, err)
	case endpoint.ValidateMAC(c.mac) != nil:
		return spec.Invalid("invalid args %v for MAC addr: %w", c.Mac, endpoint.ValidateMAC(c.mac))
	case c.MTU != 0 && (c.MTU < endpoint.LeastMTU || c.MTU > mostMTU):
		return spec.Invalid("invalid MTU %d: must be 0 (the kernel's) or between %d and %d", c.MTU, endpoint.LeastMTU, mostMTU)
	case noID(c.Owner) || noID(c.Group):
		return spec.Invalid("invalid owner or group %d: it means no user or group", uint32(nobody))
	case c.Bridge != "" && spec.ValidateIfName(c.Bridge) != nil:
		return spec.Invalid("invalid bridge name %q: %w", c.Bridge, spec.ValidateIfName(c.Bridge))
	}
	return nil
}
