// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"cmp"
	"net"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	// MultiQueue lets a program that opens the tap open several queues.
	// Reference: same.
	MultiQueue bool `json:"multiQueue"`

	// MTU in bytes; 0 is the kernel's.
	// Reference: lost when owner and group are both given; not in the result.
	MTU int `json:"mtu"`

	// Mac is the Ethernet address of the tap; without, one derived from the owner, the same
	// when an ADD is repeated.
	// Reference: lost when owner and group are both given; without, a random one.
	Mac string `json:"mac"`

	// Owner is the id of the user who may open the tap; without, no user gets the right.
	// Reference: same; without, ip(8) of iproute2 makes the tap.
	Owner *uint32 `json:"owner"`

	// Group is the id of the group that may open the tap.
	// Reference: same; without, ip(8) of iproute2 makes the tap.
	Group *uint32 `json:"group"`

	// SelinuxContext is the label of the process that makes the tap. The policy checks it
	// when a program opens the tap.
	// Reference: same; ip(8) of iproute2 is that process.
	SelinuxContext string `json:"selinuxContext"`

	// Bridge is a bridge in the container; the tap becomes a port of it.
	// Reference: same.
	Bridge string `json:"bridge"`

	// IPAM is the section of the IPAM plugin; without a type, layer 2 only.
	// Reference: same.
	IPAM struct {
		// Type is the IPAM plugin; the section's other keys are its own.
		// Reference: same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's when any of its keys is set.
	// Reference: always replaces IPAM's.
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

// mostMTU leaves room for an Ethernet header in a frame read from a tap.
const mostMTU = endpoint.MostMTU - 14

// nobody is the kernel's number for no user and no group.
const nobody = 1<<32 - 1

func noID(id *uint32) bool { return id != nil && *id == nobody }

// validate checks the answers that IPAM would give.
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
