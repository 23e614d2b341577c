// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net"
	"slices"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	Bridge string `json:"bridge"` // name of the bridge; "cni0"

	IsGateway        bool `json:"isGateway"`        // give the bridge an address in each subnet
	IsDefaultGateway bool `json:"isDefaultGateway"` // also route everything through it
	ForceAddress     bool `json:"forceAddress"`     // replace another address of the bridge
	IPMasq           bool `json:"ipMasq"`           // masquerade what leaves the subnets

	// IPMasqBackend is "iptables" or "nftables"; both mean our nftables table.
	IPMasqBackend *string `json:"ipMasqBackend"`

	MTU           int  `json:"mtu"`           // bytes; 0 is the kernel's default
	HairpinMode   bool `json:"hairpinMode"`   // a container may reach itself through the bridge
	PromiscMode   bool `json:"promiscMode"`   // of the bridge
	PortIsolation bool `json:"portIsolation"` // isolated ports do not reach each other
	MacSpoofChk   bool `json:"macspoofchk"`   // drop frames with another source address
	EnableDad     bool `json:"enabledad"`     // look for duplicate IPv6 addresses, 1-2 s

	// DisableContainerInterface leaves the container's end down, for whoever
	// takes it over; not with IPAM.
	DisableContainerInterface bool `json:"disableContainerInterface"`

	Vlan                int     `json:"vlan"`                // untagged VLAN of the port; 0 is none
	VlanTrunk           []Trunk `json:"vlanTrunk"`           // tagged VLANs of the port
	PreserveDefaultVlan bool    `json:"preserveDefaultVlan"` // keep the bridge's default VLAN on the port

	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"` // without: layer 2 only
	DNS spec.DNS `json:"dns"`

	Args struct {
		CNI struct {
			MAC string `json:"mac"` // Ethernet address of the container
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac"` // beats args.cni, which beats CNI_ARGS
	} `json:"runtimeConfig"`

	mac    net.HardwareAddr
	trunks []vlanRange
}

// Trunk is one VLAN or a range of them, or both.
type Trunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

const (
	defaultBridge = "cni0"
	maxVLAN       = 4094
)

// decode reads and validates the configuration. The texts are the reference's.
func decode(r *plugin.Request) (*Conf, error) {
	c := &Conf{Bridge: defaultBridge}
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if c.IsDefaultGateway {
		c.IsGateway = true
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	var err error
	if c.trunks, err = trunkVLANs(c.VlanTrunk); err != nil {
		return nil, err
	}
	c.mac, err = containerMAC(c, r)
	return c, err
}

func (c *Conf) validate() error {
	switch {
	case c.Vlan < 0 || c.Vlan > maxVLAN:
		return refuse("invalid VLAN ID %d (must be between 0 and 4094)", c.Vlan)
	case c.IPAM.Type != "" && c.DisableContainerInterface:
		return refuse("cannot use IPAM when DisableContainerInterface flag is set")
	case c.HairpinMode && c.PromiscMode:
		return refuse("cannot set hairpin mode and promiscuous mode at the same time")
	case c.MTU < 0:
		return refuse("invalid MTU %d", c.MTU)
	case c.IPMasqBackend != nil && *c.IPMasqBackend != "iptables" && *c.IPMasqBackend != "nftables":
		return refuse("unknown ipmasq backend %q", *c.IPMasqBackend)
	case c.Vlan != 0 && c.IsGateway && len(c.gatewayLink()) > spec.IfNameMax:
		return refuse("bridge name %q is too long: its VLAN interface %q must have at most %d characters",
			c.Bridge, c.gatewayLink(), spec.IfNameMax)
	}
	if err := spec.ValidateIfName(c.Bridge); err != nil {
		return refuse("invalid bridge name %q: %w", c.Bridge, err)
	}
	if c.IPAM.Type == "" {
		return nil // layer 2 only
	}
	return spec.ValidatePluginType(c.IPAM.Type) // before a bridge is made for nothing
}

// containerMAC is the address asked for, or nil.
func containerMAC(c *Conf, r *plugin.Request) (net.HardwareAddr, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	text, _ := spec.LookupArg(args, "MAC")
	if c.Args.CNI.MAC != "" {
		text = c.Args.CNI.MAC
	}
	if c.RuntimeConfig.MAC != "" {
		text = c.RuntimeConfig.MAC
	}
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, refuse("invalid mac %.40q: want six bytes as 02:00:00:00:00:01", text)
	}
	return mac, nil
}

// vlanRange is first to last, both included.
type vlanRange struct{ first, last uint16 }

// trunkVLANs joins the trunk's entries to ranges in ascending order.
func trunkVLANs(trunk []Trunk) ([]vlanRange, error) {
	var ids []int
	for _, t := range trunk {
		more, err := t.vlans()
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	slices.Sort(ids)
	var out []vlanRange
	for _, id := range slices.Compact(ids) {
		if n := len(out); n > 0 && int(out[n-1].last)+1 == id {
			out[n-1].last++
			continue
		}
		out = append(out, vlanRange{uint16(id), uint16(id)})
	}
	return out, nil
}

func (t Trunk) vlans() (ids []int, err error) {
	outside := func(id int) bool { return id <= 0 || id > maxVLAN }
	switch {
	case t.MinID == nil && t.MaxID == nil:
	case t.MinID == nil:
		return nil, refuse("minID and maxID should be configured simultaneously, minID is missing")
	case t.MaxID == nil:
		return nil, refuse("minID and maxID should be configured simultaneously, maxID is missing")
	case outside(*t.MinID):
		return nil, refuse("incorrect trunk minID parameter")
	case outside(*t.MaxID):
		return nil, refuse("incorrect trunk maxID parameter")
	case *t.MaxID < *t.MinID:
		return nil, refuse("minID is greater than maxID in trunk parameter")
	default:
		for id := *t.MinID; id <= *t.MaxID; id++ {
			ids = append(ids, id)
		}
	}
	if t.ID == nil {
		return ids, nil
	}
	if outside(*t.ID) {
		return nil, refuse("incorrect trunk id parameter")
	}
	return append(ids, *t.ID), nil
}

func refuse(format string, args ...any) error {
	return spec.Errorf(spec.CodeInvalidConfig, format, args...)
}
