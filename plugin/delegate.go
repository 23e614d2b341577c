// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/spec"
)

// IPAMAdd asks the IPAM plugin of the configuration for addresses, and then pushes their
// release to the undo stack. It pushes nothing for a plugin that refuses because the
// attachment already has addresses, which must be kept.
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

// IPAM calls another verb of the IPAM plugin with this request's configuration and
// environment (SPEC.md section 4); without such a plugin it does nothing.
func (r *Request) IPAM(ctx context.Context, verb spec.Verb) error {
	if r.Head.IPAM.Type == "" {
		return nil
	}
	call := *r.Call
	call.Verb = verb
	_, err := r.Session.Invoke(ctx, r.Head.IPAM.Type, &call)
	return err
}

// IgnoreGone turns the given errors into success: for DEL a missing object counts as deleted.
func IgnoreGone(err error, gone ...error) error {
	for _, g := range gone {
		if errors.Is(err, g) {
			return nil
		}
	}
	return err
}

// shortestPrefix is that of the largest private networks: 10.0.0.0/8 and fd00::/8.
const shortestPrefix = 8

// CheckPrefix refuses the address of a container whose prefix cannot be its network. A
// prefix of no bits is everything: what a host accepts and does not masquerade for the
// network would apply to every host.
func CheckPrefix(address netip.Prefix) error {
	if address.Bits() >= shortestPrefix {
		return nil
	}
	return spec.Invalid("address %s: a prefix of %d bits cannot be a container's network (at least %d)",
		address, address.Bits(), shortestPrefix).WithDetails("give the address with the prefix length of its network, or %s/%d alone",
		address.Addr(), address.Addr().BitLen())
}

// CheckPrefixes is CheckPrefix of each address in a result.
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

// CheckRoutes refuses a route without destination, which the reference copies in a form that
// no caller can read.
func CheckRoutes(routes []spec.Route) error {
	for i, r := range routes {
		if !r.Dst.IsValid() {
			return spec.Invalid("invalid route %d: no dst", i)
		}
	}
	return nil
}

// CheckFamilies refuses more addresses of a family than the version can express.
func (r *Request) CheckFamilies(v4, v6 int) error {
	if (v4 > 1 || v6 > 1) && !spec.AtLeast(r.Version, "0.3.0") {
		return spec.Invalid("CNI version %v does not support more than 1 address per family", r.Version)
	}
	return nil
}
