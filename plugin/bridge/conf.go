// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	// Bridge is made when it is missing, used unchanged when it exists, and removed only by
	// patchbay network rm.
	// Reference: never removed; one it makes has a changing Ethernet address until it is a gateway.
	Bridge string `json:"bridge"`

	// IsGateway gives the bridge an address in each of the container's subnets,
	// IPAM's gateway, else the first address, and switches forwarding on.
	// Reference: IPv6 addresses of the bridge wait for duplicate address detection.
	IsGateway bool `json:"isGateway"`

	// IsDefaultGateway is isGateway, and a default route of each family unless IPAM
	// gives one with a gateway.
	// Reference: same.
	IsDefaultGateway bool `json:"isDefaultGateway"`

	// ForceAddress replaces another IPv4 address of the bridge, or an overlapping
	// IPv6 one, which is an error otherwise.
	// Reference: same.
	ForceAddress bool `json:"forceAddress"`

	// IPMasq masquerades packets that leave the subnets, with the host's address.
	// Reference: rules for each container, left behind when the namespace ended before DEL.
	IPMasq bool `json:"ipMasq"`

	// IPMasqOutside lists prefixes of networks that the subnets are a part of: packets that
	// leave the prefix around an address are masqueraded, with or without ipMasq.
	// Reference: none.
	IPMasqOutside endpoint.Outside `json:"ipMasqOutside"`

	// IPMasqBackend may be iptables or nftables; both mean our table `inet patchbay`.
	// Reference: runs iptables (default) or nft.
	IPMasqBackend *string `json:"ipMasqBackend"`

	// Internal keeps the host from forwarding packets from or to the bridge, with or
	// without a gateway: its containers reach each other and the host. There is no
	// masquerade then. Excludes other networks on the bridge.
	// Reference: none.
	Internal bool `json:"internal"`

	// MTU in bytes of the pair, and of a new bridge; 0 is the kernel's.
	// Reference: does not report it in the result.
	MTU int `json:"mtu"`

	// HairpinMode lets the bridge send frames back through the port they came from.
	// Excludes promiscMode.
	// Reference: same.
	HairpinMode bool `json:"hairpinMode"`

	// PromiscMode makes the bridge device promiscuous.
	// Reference: CHECK fails during a capture on a bridge that is not.
	PromiscMode bool `json:"promiscMode"`

	// PortIsolation isolates the port: such ports reach the host and other ports, not each other.
	// Reference: same.
	PortIsolation bool `json:"portIsolation"`

	// MacSpoofChk drops frames with another source address than the container's.
	// Reference: runs nft; leaves its chains when the namespace ended before DEL.
	MacSpoofChk bool `json:"macspoofchk"`

	// EnableDad looks for duplicates of the IPv6 addresses of container and bridge,
	// 1-2 s.
	// Reference: only for the container; those of the bridge are always checked.
	EnableDad bool `json:"enabledad"`

	// DisableContainerInterface leaves the container's end down, for another program to set
	// up. Excludes ipam.
	// Reference: same.
	DisableContainerInterface bool `json:"disableContainerInterface"`

	// Vlan is the untagged VLAN of the port, 1 to 4094; 0 is none.
	// Reference: same.
	Vlan int `json:"vlan"`

	// VlanTrunk lists the tagged VLANs of the port; without vlan, VLAN 1 is untagged.
	// Reference: same.
	VlanTrunk []Trunk `json:"vlanTrunk"`

	// PreserveDefaultVlan keeps the bridge's default VLAN on the port, too.
	// Reference: same since v1.8.0; true by default before.
	PreserveDefaultVlan bool `json:"preserveDefaultVlan"`

	// IPAM is the section of the IPAM plugin; without a type, layer 2 only.
	// Reference: CHECK fails without.
	IPAM struct {
		// Type is the IPAM plugin; the section's other keys are its own.
		// Reference: same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's when any of its keys is set.
	// Reference: same.
	DNS spec.DNS `json:"dns"`

	Args struct {
		CNI struct {
			// MAC is the container's Ethernet address; overrides MAC= in CNI_ARGS.
			// Reference: same.
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		// MAC is the container's Ethernet address; overrides args.cni.
		// Reference: same; without any, a random one.
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`

	mac    net.HardwareAddr
	trunks []vlanRange
}

// Trunk is one VLAN or a range of them, or both.
type Trunk struct {
	// MinID is the first VLAN of a range, with maxID; 1 to 4094.
	// Reference: same.
	MinID *int `json:"minID"`

	// MaxID is the last VLAN of a range.
	// Reference: same.
	MaxID *int `json:"maxID"`

	// ID is one VLAN.
	// Reference: same.
	ID *int `json:"id"`
}

const (
	defaultBridge = "cni0"
	maxVLAN       = 4094
)

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(r *plugin.Request) (err error) {
	if c.IsDefaultGateway {
		c.IsGateway = true
	}
	if err := c.validate(); err != nil {
		return err
	}
	if c.trunks, err = trunkVLANs(c.VlanTrunk); err != nil {
		return err
	}
	c.mac, err = endpoint.WantedMAC(r, c.RuntimeConfig.MAC, c.Args.CNI.MAC)
	return err
}

func (c *Conf) validate() error {
	switch {
	case c.Vlan < 0 || c.Vlan > maxVLAN:
		return spec.Invalid("invalid VLAN ID %d (must be between 0 and 4094)", c.Vlan)
	case c.IPAM.Type != "" && c.DisableContainerInterface:
		return spec.Invalid("cannot use IPAM when DisableContainerInterface flag is set")
	case c.Internal && len(c.VlanTrunk) > 0:
		return spec.Invalid("an internal network cannot have a vlanTrunk: other VLANs of the bridge may have a gateway")
	case c.HairpinMode && c.PromiscMode:
		return spec.Invalid("cannot set hairpin mode and promiscuous mode at the same time")
	case c.IPMasqBackend != nil && *c.IPMasqBackend != "iptables" && *c.IPMasqBackend != "nftables":
		return spec.Invalid("unknown ipmasq backend %q", *c.IPMasqBackend)
	case c.Vlan != 0 && (c.IsGateway || c.Internal) && len(c.gatewayLink()) > spec.IfNameMax:
		return spec.Invalid("bridge name %q is too long: its VLAN interface %q must have at most %d characters",
			c.Bridge, c.gatewayLink(), spec.IfNameMax)
	}
	if err := endpoint.ValidateMTU(c.MTU); err != nil {
		return err
	}
	if err := c.IPMasqOutside.Validate(); err != nil {
		return err
	}
	if err := cmp.Or(spec.ValidateIfName(c.Bridge), endpoint.ValidateNewName(c.Bridge)); err != nil {
		return spec.Invalid("invalid bridge name %q: %w", c.Bridge, err)
	}
	if c.IPAM.Type == "" {
		return nil // layer 2 only
	}
	return spec.ValidatePluginType(c.IPAM.Type) // before a bridge is made for nothing
}

// vlanRange is first to last, both included.
type vlanRange struct{ first, last uint16 }

// trunkVLANs merges the trunk's entries into ranges in ascending order.
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
		return nil, spec.Invalid("minID and maxID should be configured simultaneously, minID is missing")
	case t.MaxID == nil:
		return nil, spec.Invalid("minID and maxID should be configured simultaneously, maxID is missing")
	case outside(*t.MinID):
		return nil, spec.Invalid("incorrect trunk minID parameter")
	case outside(*t.MaxID):
		return nil, spec.Invalid("incorrect trunk maxID parameter")
	case *t.MaxID < *t.MinID:
		return nil, spec.Invalid("minID is greater than maxID in trunk parameter")
	default:
		for id := *t.MinID; id <= *t.MaxID; id++ {
			ids = append(ids, id)
		}
	}
	if t.ID == nil {
		return ids, nil
	}
	if outside(*t.ID) {
		return nil, spec.Invalid("incorrect trunk id parameter")
	}
	return append(ids, *t.ID), nil
}

// validate checks the answers that IPAM would give.
func validate(r *plugin.Request) error {
	c := plugin.ConfOf[Conf](r)
	if c.Bridge == "lo" && r.InList != nil { // STATUS looks which link has the name
		return spec.Invalid("%q already exists but is not a bridge", c.Bridge)
	}
	return endpoint.ValidateSamples(r, func(ipam *spec.Result) (*spec.Result, error) {
		if err := endpoint.ValidateAnswer(c.MTU, ipam); err != nil {
			return nil, err
		}
		result := new(spec.Result)
		result.IPs, result.Routes = addressing(c, ipam)
		return result, c.oneGateway(result.IPs)
	})
}

// oneGateway refuses two gateways when the first conflicts with the second.
func (c *Conf) oneGateway(ips []spec.IPConfig) error {
	if !c.IsGateway || c.ForceAddress {
		return nil
	}
	all := c.gateways(ips)
	for i, a := range all {
		for _, b := range all[:i] {
			if a != b && (a.Addr().Is4() && b.Addr().Is4() || a.Overlaps(b)) {
				return spec.Invalid("%q cannot be the gateway by %s and by %s: a bridge has one IPv4 address", c.Bridge, b, a).
					WithDetails("make a network with a bridge of its own for each subnet")
			}
		}
	}
	return nil
}

// gateways returns the addresses that a bridge would get.
func (c *Conf) gateways(ips []spec.IPConfig) (list []netip.Prefix) {
	for _, ip := range ips {
		if ip.Gateway.IsValid() {
			list = append(list, netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
		}
	}
	return list
}

// doubts reports fields that have no effect beside the others.
func doubts(r *plugin.Request) (list []string) {
	c := plugin.ConfOf[Conf](r)
	if c.IPAM.Type == "" && (c.IsGateway || c.IPMasq) {
		list = append(list, "isGateway and ipMasq have no effect without ipam: there is no subnet")
	}
	if c.ForceAddress && !c.IsGateway {
		list = append(list, "forceAddress has no effect without isGateway: the bridge has no address")
	}
	if c.ForceAddress {
		list = append(list, c.replaced(r)...)
	}
	return append(list, c.trunkDoubts()...)
}

// replaced reports that containers of several subnets replace each other's address on the
// bridge.
func (c *Conf) replaced(r *plugin.Request) []string {
	var all []netip.Prefix
	for _, sample := range r.Samples() {
		ips, _ := addressing(c, sample)
		for _, p := range c.gateways(ips) {
			if p.Addr().Is4() && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	if len(all) < 2 {
		return nil
	}
	return []string{fmt.Sprintf("the bridge has one IPv4 address: with forceAddress the gateways %s and %s replace each other", all[0], all[1])}
}

func (c *Conf) trunkDoubts() (list []string) {
	for i, t := range c.VlanTrunk {
		if t == (Trunk{}) {
			list = append(list, fmt.Sprintf("vlanTrunk[%d] names no VLAN", i))
		}
	}
	for _, t := range c.trunks {
		if v := uint16(c.Vlan); c.Vlan != 0 && t.first <= v && v <= t.last {
			list = append(list, fmt.Sprintf("VLAN %d is in vlanTrunk too, and so tagged: the port has no untagged VLAN", v))
		}
	}
	return list
}
