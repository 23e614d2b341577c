// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// ValidateSamples calls fits with each answer that IPAM would give, if the configuration alone
// determines the answers. fits returns the container's result for an answer. ValidateSamples then
// checks the routes of all results together.
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

// ValidateAnswer returns an error if the kernel would refuse IPAM's answer for an interface with
// this MTU (0 means not known). Without this check, the kernel would refuse it only when other
// objects exist already.
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
		if err := inRange(r); err != nil {
			return err
		}
	}
	return nil
}

// inRange returns an error for a number that the kernel's messages would cut, and for scopes that it refuses.
func inRange(r spec.Route) error {
	for _, f := range [...]struct {
		name  string
		value int
	}{{"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"priority", r.Priority}} {
		if int64(f.value) > math.MaxUint32 {
			return spec.Invalid("invalid route to %s: %s %d: must be %d at most", r.Dst, f.name, f.value, int64(math.MaxUint32))
		}
	}
	switch {
	case r.Scope != nil && (*r.Scope < 0 || *r.Scope > unix.RT_SCOPE_HOST):
		return spec.Invalid("invalid route to %s: scope %d: must be between 0 and %d", r.Dst, *r.Scope, unix.RT_SCOPE_HOST)
	case r.Scope != nil && *r.Scope >= unix.RT_SCOPE_LINK && r.GW.Unmap().Is4() && !r.GW.IsUnspecified():
		return spec.Invalid("invalid route to %s: a route of scope %d is on the link, and cannot have the gateway %s", r.Dst, *r.Scope, r.GW).
			WithDetails("leave out the scope; or the gateway")
	case r.Table != nil && (*r.Table < 0 || int64(*r.Table) > math.MaxUint32):
		return spec.Invalid("invalid route to %s: table %d: must be between 0 and %d", r.Dst, *r.Table, int64(math.MaxUint32))
	}
	return nil
}

// validateRoutes returns an error for a route through a gateway that the interface can never
// reach. An address of the interface or a route without a gateway may lead to the gateway. Any range of a
// set may give the address. So a gateway in the subnet of one range serves the attachments whose
// address is from that range.
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
			// Through an IPv4 route without a gateway the kernel finds a gateway only if the route's
			// scope is that of the link, or narrower.
			if r.Dst.Addr().Is6() || r.Scope >= unix.RT_SCOPE_LINK {
				near = append(near, r.Dst)
			}
		case prefix.IsLinkLocal(gw):
		case !slices.ContainsFunc(near, func(p netip.Prefix) bool { return p.Contains(gw) }):
			return spec.Invalid("invalid route to %s: its gateway %s is in no subnet of the container", r.Dst, gw).WithDetails(
				"give a gateway of the subnet; or a prefix, or a route without a gateway, for IPv4 with the scope 253 (link), that holds this one")
		}
	}
	return nil
}

// ValidateSegment checks IPAM's answers for plugins that make one interface on a segment.
func ValidateSegment(r *plugin.Request, mtu int) error {
	return ValidateSamples(r, func(ipam *spec.Result) (*spec.Result, error) {
		return ipam, ValidateAnswer(mtu, ipam)
	})
}

// The kernel accepts MTUs between these values, in bytes. An interface with an MTU below the
// first has no IPv4, and below the second no IPv6 (RFC 8200). No interface can have an MTU above
// the last.
const (
	LeastMTU  = 68
	LeastMTU6 = 1280
	MostMTU   = 65535
)

// ValidateMTU returns an error for an MTU that no interface can have. 0 is valid and means the
// kernel's default.
func ValidateMTU(mtu int) error {
	if mtu != 0 && (mtu < LeastMTU || mtu > MostMTU) {
		return spec.Invalid("invalid MTU %d: must be 0 (the kernel's) or between %d and %d", mtu, LeastMTU, MostMTU)
	}
	return nil
}

// ValidateMAC returns an error for an Ethernet address that no interface can have. ValidateMAC
// does not check addresses of other kinds of hardware.
func ValidateMAC(mac net.HardwareAddr) error {
	switch {
	case len(mac) != 6:
	case mac[0]&1 != 0:
		return errors.New("it is a multicast address")
	case bytes.Equal(mac, make([]byte, 6)):
		return errors.New("it is all zeroes")
	}
	return nil
}

// WantedMAC returns the Ethernet address that a caller asks for, or nil. The capability
// (inRuntime) wins over args.cni.mac (inArgs), and args.cni.mac wins over MAC= in CNI_ARGS.
func WantedMAC(r *plugin.Request, inRuntime, inArgs string) (net.HardwareAddr, error) {
	arg, err := MACArg(r)
	text := cmp.Or(inRuntime, inArgs, arg)
	if err != nil || text == "" {
		return nil, err
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, spec.Invalid("invalid mac %.40q: want six bytes, such as 02:00:00:00:00:01", text)
	}
	if err := ValidateMAC(mac); err != nil {
		return nil, spec.Invalid("invalid mac %.40q: %w", text, err)
	}
	return mac, nil
}

// MACArg returns the value of MAC= in CNI_ARGS.
func MACArg(r *plugin.Request) (string, error) {
	args, err := r.CNIArgs()
	mac, _ := spec.LookupArg(args, "MAC")
	return mac, err
}
