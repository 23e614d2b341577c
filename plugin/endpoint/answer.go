// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// ValidateSamples calls fits with the answers that IPAM would give, as far as the
// configuration decides them. fits returns the container's result for an answer;
// ValidateSamples checks the routes of all results together.
func ValidateSamples(r *plugin.Request, fits func(ipam *spec.Result) (*spec.Result, error)) error {
	var results []*spec.Result
	for _, sample := range r.Samples() {
		if err := plugin.CheckPrefixes(sample); err != nil {
			return err
		}
		result, err := fits(sample)
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	return validateRoutes(results)
}

// ValidateAnswer refuses early, for an interface of an MTU (0: not known), an answer of
// IPAM that the kernel would refuse only after much else was made.
func ValidateAnswer(mtu int, ipam *spec.Result) error {
	for i, ip := range ipam.IPs {
		a := ip.Address.Addr()
		switch {
		case a.Is6() && mtu != 0 && mtu < LeastMTU6:
			return spec.Invalid("invalid MTU %d: IPv6, of which IPAM gives %s, needs at least %d", mtu, ip.Address, LeastMTU6)
		case a.Is6() && (a.IsMulticast() || a.IsLoopback() || a.IsUnspecified()):
			return spec.Invalid("IPAM gives %s, which no interface of a container can have", ip.Address)
		case slices.ContainsFunc(ipam.IPs[:i], func(other spec.IPConfig) bool { return other.Address == ip.Address }):
			return spec.Invalid("IPAM gives %s twice", ip.Address)
		}
	}
	for _, r := range ipam.Routes {
		if r.GW.IsValid() && r.Dst.IsValid() && r.GW.Unmap().Is4() != r.Dst.Addr().Unmap().Is4() {
			return spec.Invalid("invalid route to %s: its gateway %s is of the other address family", r.Dst, r.GW)
		}
	}
	return nil
}

// validateRoutes refuses a route through a gateway that the interface never reaches, by its
// addresses or by an earlier route. Any range of a set may give the address: a gateway in
// the subnet of one range serves the attachments with an address of that range.
func validateRoutes(results []*spec.Result) error {
	var near []netip.Prefix
	for _, result := range results {
		for _, ip := range result.IPs {
			near = append(near, ip.Address.Masked())
		}
	}
	for _, result := range results {
		if err := reachable(Routes("", result), near); err != nil {
			return err
		}
	}
	return nil
}

func reachable(routes []netstate.Route, near []netip.Prefix) error {
	for _, r := range routes {
		gw := r.Gateway.Unmap()
		switch {
		case !gw.IsValid():
			near = append(near, r.Dst)
		case gw.Is6() && gw.IsLinkLocalUnicast():
		case !slices.ContainsFunc(near, func(p netip.Prefix) bool { return p.Contains(gw) }):
			return spec.Invalid("invalid route to %s: its gateway %s is in no subnet of the container", r.Dst, gw).WithDetails(
				"give a gateway of the subnet; or a prefix, or a route before it without a gateway, that holds this one")
		}
	}
	return nil
}

// ValidateSegment checks IPAM's answers for the plugins of one interface on a segment.
func ValidateSegment(r *plugin.Request, mtu int) error {
	return ValidateSamples(r, func(ipam *spec.Result) (*spec.Result, error) {
		return ipam, ValidateAnswer(mtu, ipam)
	})
}
