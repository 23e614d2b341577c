// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/spec"
)

// Keep says which attachments of a network are valid. GC removes the others:
// with an empty Valid, all.
type Keep struct {
	List  *List
	Valid []spec.Attachment
}

// GC removes what is left of attachments that are no longer valid, for one or
// several networks in one go. For each cached attachment of a network that is
// not valid it calls DEL, with the configuration of its ADD; then every plugin
// gets a GC with the list of the valid ones (since 1.1.0). No ADD or DEL runs
// meanwhile. Everything is tried, and the errors are joined. Networks with
// disableGC are left alone.
func (rt *Runtime) GC(ctx context.Context, networks ...Keep) error {
	unlock, err := rt.lockAll(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	cached, err := rt.Attachments("")
	if err != nil {
		rt.warn(err) // what can be read is collected all the same
	}
	errs := []error{rt.sweepTemporary()}
	for _, k := range networks {
		if k.List.DisableGC {
			continue
		}
		errs = append(errs, rt.delStale(ctx, &k, cached), rt.gcPlugins(ctx, &k), rt.sweep(&k))
	}
	return errors.Join(errs...)
}

// delStale detaches the cached attachments of one network that are not valid.
func (rt *Runtime) delStale(ctx context.Context, k *Keep, cached []Cached) error {
	valid := make(map[spec.Attachment]bool, len(k.Valid))
	for _, a := range k.Valid {
		valid[a] = true
	}
	var errs []error
	for i := range cached {
		c := &cached[i]
		if c.Network != k.List.Name || valid[c.key()] {
			continue
		}
		a := c.Attachment
		if err := rt.delOne(ctx, c.list(k.List), &a); err != nil {
			errs = append(errs, fmt.Errorf("failed to delete stale attachment %s %s: %w", a.ContainerID, a.IfName, err))
		}
	}
	return errors.Join(errs...)
}

// delOne keeps a CHECK of the same container out; ADD and DEL are out already.
func (rt *Runtime) delOne(ctx context.Context, list *List, a *Attachment) error {
	unlock, err := rt.lockContainer(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	return rt.del(ctx, list, a)
}

func (rt *Runtime) gcPlugins(ctx context.Context, k *Keep) error {
	if !spec.AtLeast(k.List.CNIVersion, "1.1.0") {
		return nil
	}
	valid := append([]spec.Attachment{}, k.Valid...) // never null
	r := &request{list: k.List, valid: &valid}
	var errs []error
	for i := range k.List.Plugins {
		p := &k.List.Plugins[i]
		if _, err := rt.run(ctx, p, r, rt.call(ctx, spec.GC, &Attachment{}), false); err != nil {
			errs = append(errs, fmt.Errorf("failed to GC plugin %s: %w", p.Type, err))
		}
	}
	return errors.Join(errs...)
}
