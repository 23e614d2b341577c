// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// A driver that has lost its state may give one address to two containers. The records show
// which living attachment has an address. No other attachment may get that address
// (RefuseUsed). And the address must not be released for another attachment (Holder), because
// the driver would then give it to a third one.

// Holder finds the living attachment of a plugin, other than self, that has an address in a
// network. It returns nil if there is none. An attachment that has ended does not count,
// because the driver may already have given its address to another.
func (d *Dir) Holder(network, pluginName string, self owner.Key, addr netip.Addr) (*DriverState, error) {
	list, _, err := d.List(network, pluginName)
	for _, a := range list {
		if a.Owner != self && a.has(addr) && !d.Dead(a) {
			return a, nil
		}
	}
	return nil, err
}

// has reports whether an attachment has an address, from whichever driver.
func (a *DriverState) has(addr netip.Addr) bool {
	same := func(p netip.Prefix) bool { return p.IsValid() && p.Addr() == addr }
	return slices.ContainsFunc(a.Addresses, func(x Address) bool { return same(x.Address) }) ||
		a.Interface != nil && (same(a.Interface.Address) || same(a.Interface.AddressIPv6))
}

// RefuseUsed returns an error if a driver gave an address that another container has. method is
// the call by which it gave the address. The caller holds the network's lock until it has
// recorded the address. So if two containers get one address at the same time, only one of them
// keeps it.
func (d *Dir) RefuseUsed(r *plugin.Request, pluginName, method string, p netip.Prefix) error {
	other, err := d.Holder(r.Network, pluginName, r.Owner, p.Addr())
	if other == nil {
		return err
	}
	return GivenTwice(method, p, fmt.Sprintf("%s's of container %s", other.IfName, other.ContainerID))
}

// GivenTwice returns the error for a driver that gave an address which is already in use.
func GivenTwice(method string, p netip.Prefix, whose string) error {
	return spec.Errorf(spec.CodeDecoding, "%s: %w: address %s is %s already", method, cnm.ErrBadAnswer, p, whose).
		WithDetails("the driver gave it twice, for example because it lost its state; the present holder keeps it, and it was not given back. " +
			"Attach again to get another; if the driver repeats this, reserve at the driver the addresses that patchbay ps lists")
}
