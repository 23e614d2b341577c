// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/spec"
)

// freeAddress frees the MAC address of a new lease from another endpoint, and the wanted
// address from a dead one.
func (d *Driver) freeAddress(ctx context.Context, network, id string, wanted netip.Addr) error {
	l, err := d.store.Leases.Get(id)
	switch {
	case errors.Is(err, state.ErrUnknown):
	case err != nil:
		return err
	case l.Endpoint != "" && !d.evict(ctx, l.Endpoint, true):
		return takenBy(l)
	}
	if !wanted.IsValid() {
		return nil
	}
	all, err := d.store.Leases.List()
	for _, l := range all {
		if l.ID != id && l.Network == network && l.Endpoint != "" && slices.Contains(l.Given, wanted) {
			d.evict(ctx, l.Endpoint, false)
		}
	}
	return err
}

func takenBy(l *state.Lease) error {
	return fmt.Errorf("the MAC address is that of endpoint %.12s in network %s: choose another --mac-address", l.Endpoint, l.Network)
}

// static is an ipam section with a lease's addresses.
type static struct {
	Type      string          `json:"type"`
	Addresses []staticAddress `json:"addresses"`
	Routes    []spec.Route    `json:"routes,omitempty"`
	DNS       spec.DNS        `json:"dns,omitzero"`
}

type staticAddress struct {
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// leased is the ipam section for an endpoint whose address our IPAM driver gave, nil for
// any other. It binds the lease to the endpoint.
func (d *Driver) leased(ctx context.Context, n *network, e *state.Endpoint) (any, error) {
	l, err := d.bind(ctx, leaseID(n.list.Name, e.Wanted.MacAddress), e.ID)
	if l == nil || err != nil || l.Result == nil {
		return nil, err
	}
	return staticOf(l), nil
}

func staticOf(l *state.Lease) static {
	out := static{Type: "static", Routes: l.Result.Routes, DNS: l.Result.DNS}
	for _, ip := range l.Result.IPs {
		out.Addresses = append(out.Addresses, staticAddress{ip.Address, ip.Gateway})
	}
	return out
}

// leaseEnd says what happens to a lease when its endpoint is removed.
type leaseEnd int

const (
	unbind  leaseEnd = iota // Docker gives the address back, or has done so
	abandon                 // Docker will not
)

// endLease unbinds an endpoint's lease, or gives it back. With --mac-address the lease
// may already be the next endpoint's, which Docker created before the first was removed.
func (d *Driver) endLease(ctx context.Context, id, endpointID string, end leaseEnd) error {
	return d.knownLease(ctx, id, func(l *state.Lease) error {
		switch {
		case l.Endpoint != endpointID:
			return nil
		case end == abandon || len(l.Given) == 0:
			return d.dropLease(ctx, l)
		}
		l.Endpoint, l.Unbound = "", true
		return d.saveLease(l)
	})
}

// bind binds a lease to an endpoint; nil when there is none.
func (d *Driver) bind(ctx context.Context, id, endpointID string) (bound *state.Lease, err error) {
	err = d.knownLease(ctx, id, func(l *state.Lease) error {
		if bound = l; l.Endpoint == endpointID {
			return nil
		}
		if used, err := d.used(l); used { // two endpoints requested one MAC address at once
			return errors.Join(err, takenBy(l))
		}
		l.Endpoint, l.Unbound = endpointID, false
		return d.saveLease(l)
	})
	return bound, err
}
