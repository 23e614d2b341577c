// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// A driver that lost count gives one address to two containers. The records
// tell: what a living attachment has is given to no other (Alone), and is not
// released for another (Holder), which would give it to a third.

// Holder finds the living attachment of a plugin, other than self's, that has an
// address in a network; nil when there is none. One that is about to give it back
// (Ending) is none: the driver may give it away before that is over.
func (s *Store) Holder(network, pluginName string, self owner.Key, addr netip.Addr) (*Attachment, error) {
	list, _, err := s.List(network, pluginName)
	for _, a := range list {
		if a.Owner != self && a.has(addr) && !s.Dead(a) {
			return a, nil
		}
	}
	return nil, err
}

// has says whether an address is one of an attachment's, whoever gave it.
func (a *Attachment) has(addr netip.Addr) bool {
	same := func(p netip.Prefix) bool { return p.IsValid() && p.Addr() == addr }
	return slices.ContainsFunc(a.Addresses, func(x Address) bool { return same(x.Address) }) ||
		a.Interface != nil && (same(a.Interface.Address) || same(a.Interface.AddressIPv6))
}

// Alone refuses an address that a driver gave by a method although another
// container has it. The caller has the network's lock until it has written down
// who has the address, so that of two that are given one at once one gets it.
func (s *Store) Alone(r *plugin.Request, pluginName, method string, p netip.Prefix) error {
	other, err := s.Holder(r.Network, pluginName, r.Owner, p.Addr())
	if other == nil {
		return err
	}
	return Twice(method, p, fmt.Sprintf("%s's of container %s", other.IfName, other.ContainerID))
}

// Twice is the error of a driver that gave an address which is whose already.
func Twice(method string, p netip.Prefix, whose string) error {
	return spec.Errorf(spec.CodeDecoding, "%s: %w: address %s is %s already", method, cnm.ErrBadAnswer, p, whose).
		WithDetails("the driver gave it twice, as one does that lost its memory; it stays with who has it, and was not given back. " +
			"Attach again to be given another; if the driver goes on so, tell it what is in use: patchbay ps lists the addresses")
}

// Ending writes down that an attachment is over before a driver is told: from
// then on its addresses may be another's. What was never written needs it not.
func (s *Store) Ending(r *plugin.Request, pluginName string, a *Attachment) {
	if a.Ended || a.ContainerID == "" {
		return
	}
	a.Ended = true
	rec, err := a.record(r.Network, pluginName)
	if err == nil {
		err = s.Records.Rewrite(rec)
	}
	if err != nil { // a full disk keeps no DEL from removing
		kernel.Warn(r, err)
	}
}
