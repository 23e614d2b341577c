// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/spec"
)

// IPAMAdd asks the configuration's IPAM plugin for addresses. It then pushes their release to the
// undo stack. If the plugin refuses because the attachment already has addresses, IPAMAdd pushes
// nothing: those addresses must stay.
func (r *Request) IPAMAdd(ctx context.Context) (*spec.Result, error) {
	if err := r.Step("ipam"); err != nil {
		return nil, err
	}
	if r.Head.IPAM.Type == "" {
		return nil, spec.Invalid("no plugin name provided")
	}
	result, err := r.Session.Add(ctx, r.Head.IPAM.Type, r.Call, nil)
	if (err == nil || errors.Is(err, ErrResult)) && r.Session.Dry == nil {
		r.Undo(func(ctx context.Context) error { return r.IPAM(ctx, spec.Del) })
	}
	if err != nil {
		return nil, err
	}
	if err := CheckPrefixes(result); err != nil {
		return nil, err
	}
	return result, nil
}

// IPAM calls another verb of the IPAM plugin with the configuration and environment of this
// request (SPEC.md section 4). If the configuration has no IPAM plugin, IPAM does nothing.
func (r *Request) IPAM(ctx context.Context, verb spec.Verb) error {
	if r.Head.IPAM.Type == "" {
		return nil
	}
	call := *r.Call
	call.Verb = verb
	_, err := r.Session.Invoke(ctx, r.Head.IPAM.Type, &call)
	return err
}

// IgnoreGone returns nil if err is one of the errors in gone. DEL uses it, because for a DEL a
// missing object counts as deleted.
func IgnoreGone(err error, gone ...error) error {
	for _, g := range gone {
		if errors.Is(err, g) {
			return nil
		}
	}
	return err
}

// shortestPrefix is the prefix length of the largest private networks, 10.0.0.0/8 and
// fd00::/8.
const shortestPrefix = 8

// CheckPrefix returns an error if the prefix of a container's address cannot be its network. A
// prefix of length 0, for example, contains every host. With it the firewall would accept traffic
// of every host and masquerade none.
func CheckPrefix(address netip.Prefix) error {
	if address.Bits() >= shortestPrefix {
		return nil
	}
	return spec.Invalid("address %s: a prefix of %d bits cannot be a container's network (at least %d)",
		address, address.Bits(), shortestPrefix).WithDetails("give the address with the prefix length of its network, or %s/%d alone",
		address.Addr(), address.Addr().BitLen())
}

// CheckPrefixes applies CheckPrefix to each address in a result.
func CheckPrefixes(result *spec.Result) error {
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if err := CheckPrefix(ip.Address); err != nil {
			return err
		}
	}
	return nil
}

// CheckRoutes returns an error for a route without destination. The reference passes such a route
// on in a form that no caller can read.
func CheckRoutes(routes []spec.Route) error {
	for i, r := range routes {
		if !r.Dst.IsValid() {
			return spec.Invalid("invalid route %d: no dst", i)
		}
	}
	return nil
}

// CheckFamilies returns an error if the version of the request cannot express so many
// addresses of a family.
func (r *Request) CheckFamilies(v4, v6 int) error {
	if (v4 > 1 || v6 > 1) && !spec.AtLeast(r.Version, "0.3.0") {
		return spec.Invalid("CNI version %v does not support more than 1 address per family", r.Version)
	}
	return nil
}
