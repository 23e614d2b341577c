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

// A driver that lost its state may give one address to two containers. The records show
// which address a living attachment has: no other attachment may get it (Alone), and it
// is not released for another (Holder), since the driver would then give it to a third.

// Holder finds the living attachment of a plugin, other than self's, that has an address
// in a network; nil when there is none. An attachment that is about to give it back
// (Ending) does not count: the driver may already give the address to another.
func (d *Dir) Holder(network, pluginName string, self owner.Key, addr netip.Addr) (*Attachment, error) {
	list, _, err := d.List(network, pluginName)
	for _, a := range list {
		if a.Owner != self && a.has(addr) && !d.Dead(a) {
			return a, nil
		}
	}
	return nil, err
}

// has says whether an attachment has an address, from any driver.
func (a *Attachment) has(addr netip.Addr) bool {
	same := func(p netip.Prefix) bool { return p.IsValid() && p.Addr() == addr }
	return slices.ContainsFunc(a.Addresses, func(x Address) bool { return same(x.Address) }) ||
		a.Interface != nil && (same(a.Interface.Address) || same(a.Interface.AddressIPv6))
}

// RefuseUsed refuses an address that a driver gave by a method although another container has
// it. The caller holds the network's lock until it has recorded the address, so that of
// two containers that get one address at once only one keeps it.
func (d *Dir) RefuseUsed(r *plugin.Request, pluginName, method string, p netip.Prefix) error {
	other, err := d.Holder(r.Network, pluginName, r.Owner, p.Addr())
	if other == nil {
		return err
	}
	return GivenTwice(method, p, fmt.Sprintf("%s's of container %s", other.IfName, other.ContainerID))
}

// GivenTwice is the error of a driver that gave an address that is in use already.
func GivenTwice(method string, p netip.Prefix, whose string) error {
	return spec.Errorf(spec.CodeDecoding, "%s: %w: address %s is %s already", method, cnm.ErrBadAnswer, p, whose).
		WithDetails("the driver gave it twice, for example because it lost its state; the present holder keeps it, and it was not given back. " +
			"Attach again to get another; if the driver repeats this, reserve at the driver the addresses that patchbay ps lists")
}
