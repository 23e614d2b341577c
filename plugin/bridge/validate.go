// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

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
