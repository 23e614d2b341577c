// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/sealed"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// del removes what the plan says. Without a plan there is nothing to remove.
func del(ctx context.Context, r *plugin.Request) error {
	return kernel.Of(r).Detach(r, nil, func(*record.Record) error { return removePlanned(ctx, r) })
}

// removePlanned removes what the plan of a request's attachment says. If the plan was cut short, by a power loss, a DEL makes it
// again of the annotation, which some runtimes pass to a DEL too, and of today's definitions.
func removePlanned(ctx context.Context, r *plugin.Request) error {
	plan, err := attached.Read(r.Session.Paths, r.Owner)
	if errors.Is(err, sealed.ErrDamaged) {
		kernel.Warn(r, err)
		plan, err = again(ctx, r), nil
	}
	if plan == nil || err != nil {
		return err
	}
	return remove(ctx, r, plan)
}

// again makes a lost plan again, as far as possible. What it misses, patchbay gc finds.
func again(ctx context.Context, r *plugin.Request) *npwg.Plan {
	plan := &npwg.Plan{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName, Args: r.Args, Path: pathOf(r)}
	c, err := choose(ctx, r)
	if err != nil {
		kernel.Warn(r, fmt.Errorf("%w; patchbay gc finds what is left of the pod's further networks", err))
	}
	if c == nil {
		return plan
	}
	for i := range c.definitions {
		a, err := interfaceOf(r, &c.networks[i], &c.definitions[i])
		if err != nil {
			kernel.Warn(r, err)
			continue
		}
		a.State = npwg.Attempted
		plan.Interfaces = append(plan.Interfaces, *a)
	}
	return plan
}

// remove calls the DELs of all attachments that were begun, the newest first, also after an error (§7.2). The plan goes last: as long
// as something is left, a later DEL or GC finds it.
func remove(ctx context.Context, r *plugin.Request, plan *npwg.Plan) error {
	var errs []error
	for _, a := range plan.Begun() {
		if err := removeOne(ctx, r, plan, a); err != nil {
			errs = append(errs, failed(a, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := r.Session.Flush(ctx); err != nil {
		return err
	}
	return attached.Remove(r.Session.Paths, attached.Owner(plan))
}

// removeOne calls the DELs of one attachment, in reverse order.
func removeOne(ctx context.Context, r *plugin.Request, plan *npwg.Plan, a *npwg.Interface) error {
	list, err := membersOf(r, plan, a)
	errs := []error{err}
	var prev json.RawMessage
	if spec.AtLeast(a.CNIVersion, "0.4.0") {
		prev = a.Result
	}
	for _, m := range slices.Backward(list) {
		if len(errs) > 1 && r.Session.IsIPAM(m.Type) {
			continue // what uses the addresses may still exist
		}
		if err := m.Do(ctx, spec.Del, prev); err != nil {
			errs = append(errs, fmt.Errorf("plugin type=%q failed (delete): %w", m.Type, err))
		}
	}
	return errors.Join(errs...)
}
