// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

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
	return endpoint.ValidateSamples(r, func(ipam *spec.Result) (*spec.Result, error) {
		if err := endpoint.ValidateAnswer(c.MTU, ipam); err != nil {
			return nil, err
		}
		for _, ip := range ipam.IPs {
			if ip.Gateway.IsValid() && ip.Gateway.Is4() != ip.Address.Addr().Is4() {
				return nil, spec.Invalid("the gateway %s of %s is of the other address family", ip.Gateway, ip.Address)
			}
		}
		return reaching(ipam), nil
	})
}

// reaching is an answer with the gateways as neighbours, as with this plugin.
func reaching(ipam *spec.Result) *spec.Result {
	result := *ipam
	result.IPs = slices.Clone(ipam.IPs)
	for _, ip := range ipam.IPs {
		if ip.Gateway.IsValid() {
			result.IPs = append(result.IPs, spec.IPConfig{Address: single(ip.Gateway)})
		}
	}
	return &result
}

// doubts: CNI_ARGS may still name a gateway, so an address without one is not refused.
func doubts(r *plugin.Request) (list []string) {
	for _, sample := range r.Samples() {
		for _, ip := range sample.IPs {
			if ip.Gateway == (netip.Addr{}) {
				list = append(list, fmt.Sprintf("IPAM gives %s without a gateway, which ptp needs: an ADD works with one in CNI_ARGS alone", ip.Address))
			}
		}
	}
	return list
}
