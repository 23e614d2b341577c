// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/engine"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
)

// used says whether a lease is of an endpoint of ours that is there.
func (d *Driver) used(l *state.Lease) (bool, error) {
	if l.Endpoint == "" {
		return false, nil
	}
	_, err := d.store.Endpoint(l.Endpoint)
	if errors.Is(err, state.ErrUnknown) {
		return false, nil
	}
	return true, err
}

// sweepLeases gives back what no endpoint uses, and has not for some time: Docker
// asks for the address first, and gives it back last. What Docker was given and no
// endpoint of ours took may be that of a container whose network is another
// driver's (-d macvlan --ipam-driver patchbay), so that is reconcileLeases'.
func (d *Driver) sweepLeases(ctx context.Context, s *sweep) error {
	return d.giveBackLeases(ctx, s, func(l *state.Lease) string {
		switch {
		case l.Boot != "" && l.Boot != d.boot:
			return "they are from before the node booted"
		case (l.Endpoint != "" || l.Unbound || len(l.Given) == 0) && time.Since(l.Since).Abs() >= s.grace:
			return "no endpoint uses them"
		}
		return ""
	})
}

// reconcileLeases gives back what no container of Docker's has, whatever driver
// its network is of.
func (d *Driver) reconcileLeases(ctx context.Context, s *sweep, list []engine.Network, asked time.Time) error {
	theirs, err := d.addressesOfDocker(ctx, list)
	if err != nil {
		return err
	}
	return d.giveBackLeases(ctx, s, func(l *state.Lease) string {
		if l.Since.Before(asked) && !slices.ContainsFunc(theirs, func(e engine.Endpoint) bool { return has(e, l) }) {
			return "no container of Docker's has them"
		}
		return ""
	})
}

// addressesOfDocker are the endpoints of all networks that may have our addresses.
func (d *Driver) addressesOfDocker(ctx context.Context, list []engine.Network) (out []engine.Endpoint, err error) {
	for i := range list {
		options := list[i].IPAM.Options
		if options[optNetwork] == "" && options[optConf] == "" {
			continue // RequestPool refuses these
		}
		all, _, err := d.opts.Engine.Endpoints(ctx, list[i].ID)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			out = append(out, e)
		}
	}
	return out, nil
}

// has says whether an endpoint may be the one that a lease is of. Its MAC address
// would do, but that some drivers have none to show.
func has(e engine.Endpoint, l *state.Lease) bool {
	return leaseID(l.Network, e.MAC) == l.ID || slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return slices.Contains(l.Given, a) })
}

// giveBackLeases gives back those that no endpoint of ours uses and that why has
// a reason for.
func (d *Driver) giveBackLeases(ctx context.Context, s *sweep, why func(*state.Lease) string) error {
	all, err := d.store.Leases()
	errs := []error{err}
	for _, l := range all {
		if why(l) != "" { // looked at again with its lock
			errs = append(errs, d.giveBackLease(ctx, s, l.ID, why))
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) giveBackLease(ctx context.Context, s *sweep, id string, why func(*state.Lease) string) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	return d.knownLease(ctx, id, func(l *state.Lease) error {
		if used, err := d.used(l); used {
			return err
		}
		reason := why(l)
		if reason == "" {
			return nil
		}
		i := Item{Kind: kindAddresses, Name: leaseName(l), Why: reason}
		return s.take(d, i, func() error { return d.dropLease(ctx, l) })
	})
}

// leaseName is what a person reads. No address is known of a lease whose request
// was cut short.
func leaseName(l *state.Lease) string {
	if len(l.Given) == 0 {
		return "asked of " + l.Network
	}
	return fmt.Sprintf("%s of %s", strings.Trim(fmt.Sprint(l.Given), "[]"), l.Network)
}
