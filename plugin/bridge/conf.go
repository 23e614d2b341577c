// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// Bridge is the name of the bridge. A missing bridge is made; an existing one is used unchanged.
	// Only patchbay network rm removes it. Reference: never removed; the Ethernet address of a new
	// bridge changes until the bridge is a gateway.
	Bridge string `json:"bridge"`

	// IsGateway gives the bridge an address in each of the container's subnets and switches
	// forwarding on. The address is IPAM's gateway or, if IPAM gives none, the first address of that
	// subnet. Reference: IPv6 addresses of the bridge wait for duplicate address detection.
	IsGateway bool `json:"isGateway"`

	// IsDefaultGateway sets isGateway and adds a default route of each family, unless IPAM gives
	// one with a gateway, or one on the link. Reference: same, but it adds
	// one beside a default route on the link.
	IsDefaultGateway bool `json:"isDefaultGateway"`

	// ForceAddress replaces another IPv4 address of the bridge, or an overlapping IPv6 address.
	// Without it such an address is an error. Reference: same.
	ForceAddress bool `json:"forceAddress"`

	// IPMasq masquerades packets that leave the subnets: they get the host's address. Reference:
	// makes rules for each container and leaves them behind if the namespace ended before DEL.
	IPMasq bool `json:"ipMasq"`

	// IPMasqOutside lists prefixes that contain the subnets. A packet that leaves the prefix of its
	// source address is masqueraded, with or without ipMasq. Reference: none, ours only.
	IPMasqOutside endpoint.Outside `json:"ipMasqOutside"`

	// IPMasqBackend may be iptables or nftables; both mean our table `inet patchbay`.
	// Reference: runs iptables (default) or nft.
	IPMasqBackend *string `json:"ipMasqBackend"`

	// Internal stops the host from forwarding packets from or to the bridge, with or without a
	// gateway. The containers still reach each other and the host. Nothing is masqueraded. No other
	// network may use the bridge. Reference: none, ours only.
	Internal bool `json:"internal"`

	// Span lists the prefixes of a network of which this bridge serves a part, and other hosts serve
	// the rest. An internal bridge forwards between the containers of such a prefix, but not the
	// packets of the hosts themselves, whose address is the first of their part. Reference: none, ours only.
	Span []netip.Prefix `json:"span"`

	// Unreachable lists prefixes to which the host sends packets only by routes to parts of them, and
	// never by its default route: ADD adds an unreachable route for each, if there is none, and fails if
	// another program's route takes its packets. DEL leaves it. The agent of patchbayd hosts sets
	// this if its network is encrypted. Reference: none, ours only.
	Unreachable []netip.Prefix `json:"unreachable"`

	// MTU is the MTU of the veth pair and of a new bridge, in bytes; 0 means the kernel's
	// default. Reference: does not report it in the result.
	MTU int `json:"mtu"`

	// HairpinMode lets the bridge send frames back through the port they came from. It excludes
	// promiscMode. Reference: same.
	HairpinMode bool `json:"hairpinMode"`

	// PromiscMode makes the bridge device promiscuous. Reference: without promiscMode, CHECK fails
	// while a program captures packets on the bridge.
	PromiscMode bool `json:"promiscMode"`

	// PortIsolation isolates the port: isolated ports reach the host and other ports, but not each
	// other. Reference: same.
	PortIsolation bool `json:"portIsolation"`

	// MacSpoofChk drops frames whose source address is not the container's. Reference: runs nft;
	// leaves its chains behind if the namespace ended before DEL.
	MacSpoofChk bool `json:"macspoofchk"`

	// EnableDad makes the kernel look for duplicates of the IPv6 addresses of container and
	// bridge, which takes 1-2 s. Reference: only for the container's addresses; the bridge's
	// addresses are always checked.
	EnableDad bool `json:"enabledad"`

	// DisableContainerInterface leaves the container's end down, so that another program can set it
	// up. It excludes ipam. Reference: same.
	DisableContainerInterface bool `json:"disableContainerInterface"`

	// Vlan is the untagged VLAN of the port, 1 to 4094; 0 means none. Reference: same.
	Vlan int `json:"vlan"`

	// VlanTrunk lists the tagged VLANs of the port. Without vlan, VLAN 1 is untagged. Reference:
	// same.
	VlanTrunk []Trunk `json:"vlanTrunk"`

	// PreserveDefaultVlan also keeps the bridge's default VLAN on the port. Reference: same since
	// v1.8.0; true by default before.
	PreserveDefaultVlan bool `json:"preserveDefaultVlan"`

	// IPAM is the section of the IPAM plugin. Without a type the container gets no addresses (layer
	// 2 only). Reference: CHECK fails without a type.
	IPAM struct {
		// Type is the IPAM plugin. The other keys of the section belong to that plugin. Reference:
		// same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: same.
	DNS spec.DNS `json:"dns"`

	Args struct {
		CNI struct {
			// MAC is the container's Ethernet address; it overrides MAC= in CNI_ARGS. Reference: same.
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		// MAC is the container's Ethernet address; it overrides args.cni. Reference: same; if none is
		// given, a random one.
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`

	mac    net.HardwareAddr
	trunks []vlanRange
}

// Trunk is a single VLAN, a range of VLANs, or both.
type Trunk struct {
	// MinID is the first VLAN of a range, 1 to 4094; it needs maxID. Reference: same.
	MinID *int `json:"minID"`

	// MaxID is the last VLAN of a range.
	// Reference: same.
	MaxID *int `json:"maxID"`

	// ID is a single VLAN. Reference: same.
	ID *int `json:"id"`
}

const (
	defaultBridge = "cni0"
	maxVLAN       = 4094
	policyPlugin  = "policy"
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
	if err := cmp.Or(c.IPMasqOutside.Validate(), endpoint.ValidateNetworks("span", c.Span), endpoint.ValidateNetworks("unreachable", c.Unreachable)); err != nil {
		return err
	}
	if err := spec.ValidateNewIfName(c.Bridge); err != nil {
		return spec.Invalid("invalid bridge name %q: %w", c.Bridge, err)
	}
	if c.IPAM.Type == "" {
		return nil // no addresses, layer 2 only
	}
	return spec.ValidatePluginType(c.IPAM.Type) // fail before a bridge is made
}

// vlanRange is a range of VLANs, both ends included.
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

// validate checks the configuration against the addresses that IPAM would give.
func validate(r *plugin.Request) error {
	c := plugin.ConfOf[Conf](r)
	if c.Bridge == "lo" && r.InList != nil { // STATUS checks which kind of link has the name
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

// oneGateway returns an error if the bridge would need two gateways and the first conflicts with
// the second.
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

// gateways returns the addresses that the bridge would get.
func (c *Conf) gateways(ips []spec.IPConfig) (list []netip.Prefix) {
	for _, ip := range ips {
		if ip.Gateway.IsValid() {
			list = append(list, netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
		}
	}
	return list
}

// doubts warns about fields that have no effect together with the other fields.
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
	if r.InList != nil && len(c.trunks) > 0 && slices.Contains(r.InList.Types, policyPlugin) {
		list = append(list, "the plugin policy drops the frames with a VLAN tag that vlanTrunk lets pass: use one of them")
	}
	return append(list, c.trunkDoubts()...)
}

// replaced warns that containers of different subnets would replace each other's gateway address
// on the bridge.
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
