// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Ask is what a pod asks of the plugins of one network. In JSON it has the keys of the annotation.
type Ask struct {
	IPs          []string                   `json:"ips,omitempty"` // with or without prefix length
	MAC          string                     `json:"mac,omitempty"`
	GUID         string                     `json:"infiniband-guid,omitempty"`
	Ports        []spec.PortMapping         `json:"portMappings,omitempty"`
	Bandwidth    spec.Bandwidth             `json:"bandwidth,omitzero"`
	Args         map[string]json.RawMessage `json:"cni-args,omitempty"`
	DefaultRoute []netip.Addr               `json:"default-route,omitzero"` // gateways; nil: the annotation has no such key
	IPAMClaim    string                     `json:"ipam-claim-reference,omitempty"`
	DeviceID     string                     `json:"deviceID,omitempty"`
}

// claimCapability is the capability by which a plugin of ours gets the name of an IPAMClaim. The standard has none: its plugins read
// the pod's annotation.
const claimCapability = "ipamClaimReference"

// Capabilities returns the values of runtimeConfig. A plugin gets those that it declares.
func (a *Ask) Capabilities() (map[string]json.RawMessage, error) {
	values := spec.Capabilities{
		PortMappings: a.Ports, Bandwidth: a.Bandwidth, IPs: a.IPs, MAC: a.MAC, InfinibandGUID: a.GUID, DeviceID: a.DeviceID,
	}.Map()
	if a.IPAMClaim != "" {
		values[claimCapability] = a.IPAMClaim
	}
	out := make(map[string]json.RawMessage, len(values))
	for name, value := range values {
		data, err := lightjson.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode capability %s: %w", name, err)
		}
		out[name] = data
	}
	return out, nil
}

// CNIArgs returns CNI_ARGS with the addresses that the pod asks for. Plugins such as static read them there, and need no capability;
// Multus does the same.
func (a *Ask) CNIArgs(args string) string {
	parts := []string{}
	if args != "" {
		parts = append(parts, args)
	}
	if len(a.IPs) > 0 {
		parts = append(parts, "IP="+strings.Join(a.IPs, ","))
	}
	if a.MAC != "" {
		parts = append(parts, "MAC="+a.MAC)
	}
	return strings.Join(parts, ";")
}

// Unserved returns an error if the pod asks for something that no plugin of the network can give, because none declares the
// capability (§4.1.2.1.3 and others: then the attachment fails). Without strict, addresses are left out: their plugins
// may read them in CNI_ARGS, and Honoured finds out whether one did.
func (a *Ask) Unserved(declared map[string]bool, strict bool) error {
	values, err := a.Capabilities()
	if err != nil {
		return err
	}
	for _, c := range []struct{ name, key string }{
		{"portMappings", "portMappings"}, {"bandwidth", "bandwidth"}, {"infinibandGUID", "infiniband-guid"}, {"ips", "ips"}, {"mac", "mac"},
	} {
		_, asked := values[c.name]
		if verified := c.name == "ips" || c.name == "mac"; asked && !declared[c.name] && (strict || !verified) {
			return fmt.Errorf("the annotation asks for %s, but no plugin of the network declares the capability %s: add \"capabilities\": {%q: true} to the plugin that has it, or leave %s out",
				c.key, c.name, c.name, c.key)
		}
	}
	return nil
}

// Honoured returns an error if the result of an ADD lacks an address that the pod asks for.
func (a *Ask) Honoured(result *spec.Result, ifName string) error {
	for _, text := range a.IPs {
		addr, bits, err := parseIP(text)
		if err != nil {
			return err
		}
		if !hasIP(result, addr, bits) {
			return fmt.Errorf("the annotation asks for the address %s, and the plugins gave others: its ipam must take addresses from a capability or CNI_ARGS, as static does", text)
		}
	}
	if a.MAC == "" {
		return nil
	}
	if i := result.Inside(ifName); i == nil || !strings.EqualFold(i.Mac, a.MAC) {
		return fmt.Errorf("the annotation asks for mac %s, and the plugins did not set it: the network needs a plugin with the capability mac, such as tuning", a.MAC)
	}
	return nil
}

func hasIP(result *spec.Result, addr netip.Addr, bits int) bool {
	for _, ip := range result.IPs {
		if ip.Address.Addr().Unmap() == addr && (bits < 0 || ip.Address.Bits() == bits) {
			return true
		}
	}
	return false
}
