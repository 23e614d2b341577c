// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Keep lists the valid attachments of a network. GC removes the others: with an empty
// Valid, all.
type Keep struct {
	List  *List
	Valid []spec.Attachment

	// Now, if set, is called for more valid attachments once no ADD and no DEL of this
	// runtime runs on the network: an earlier list would miss attachments made since.
	Now func(context.Context) ([]spec.Attachment, error)
	// Alive, if set, is called again for each attachment to be detached, while ADDs of it
	// are kept out, also those of other runtimes.
	Alive func(*Cached) bool

	listed time.Time // GC keeps newer attachments, which the list cannot have
}

// GC removes what is left of attachments that are no longer valid, for one or several
// networks in turn. For each cached attachment of a network that is not valid it calls DEL,
// with the configuration of its ADD; then every plugin gets a GC with the list of the valid
// ones (since 1.1.0). No ADD or DEL of the network runs meanwhile. Attachments that other
// runtimes make meanwhile are kept. GC goes on after errors and joins them. It skips
// networks with disableGC.
func (rt *Runtime) GC(ctx context.Context, networks ...Keep) error {
	errs := []error{rt.sweepTemporary(clock.Listing(ctx))}
	for _, k := range networks {
		if !k.List.DisableGC {
			errs = append(errs, rt.gc(ctx, &k))
		}
	}
	return errors.Join(errs...)
}

func (rt *Runtime) gc(ctx context.Context, k *Keep) error {
	bounded := *rt
	bounded.Invoker = &patient{rt.invoker(), cmp.Or(rt.DelTime, delTime)}
	rt = &bounded
	unlock, err := rt.lockNetwork(ctx, k.List.Name)
	if err != nil {
		return err
	}
	defer unlock()
	k.listed = clock.Listing(ctx)
	if k.Now != nil {
		more, err := k.Now(ctx)
		if err != nil {
			return err // without the list no attachment is known to be dead
		}
		k.Valid = append(slices.Clone(k.Valid), more...)
	}
	cached, err := rt.Attachments("")
	if err != nil {
		rt.warn(err) // collect the others
	}
	return errors.Join(rt.delStale(ctx, k, cached), rt.gcPlugins(ctx, k), rt.sweep(k))
}

// delTime is the default of DelTime; a plugin's GC has gcShare times as long.
const (
	delTime = 30 * time.Second
	gcShare = 20
)

// patient calls plugins with the time limits of a GC.
type patient struct {
	invoke.Invoker
	del time.Duration
}

// Invoke calls a plugin.
func (p *patient) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	limit := p.del
	if call.Verb == spec.GC {
		limit *= gcShare
	}
	return invoke.Within(ctx, limit, p.Invoker, pluginType, call)
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
		if err := rt.delOne(ctx, k, c); err != nil {
			errs = append(errs, fmt.Errorf("failed to delete stale attachment %s %s: %w", c.ContainerID, c.IfName, err))
		}
	}
	return errors.Join(errs...)
}

// delOne keeps out a CHECK of the same container, and ADDs of other runtimes; our own ADDs
// and DELs are out already. Then it looks again.
func (rt *Runtime) delOne(ctx context.Context, k *Keep, c *Cached) error {
	unlock, err := rt.lockContainer(ctx, c.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	records := record.New(or(rt.RunDir, DefaultRunDir))
	release, stays, err := records.Seize(c.Network, owner.Of(c.Network, c.ContainerID, c.IfName), func(now []record.CurrentRecord) string {
		return rt.reasonToKeep(k, c, now)
	})
	if err != nil || stays != "" {
		return err
	}
	defer release()
	records.Close() // the plugins of the DEL take the locks of the records, and pass over our claim
	a := c.Attachment
	return rt.del(ctx, c.list(k.List), &a)
}

// reasonToKeep returns why an attachment is kept: it was made, or made again, since the list was
// begun. It returns "" when it is not kept.
func (rt *Runtime) reasonToKeep(k *Keep, c *Cached, now []record.CurrentRecord) string {
	const newer = "it is newer than the list of valid attachments"
	for _, s := range now {
		if s.Since.After(k.listed) {
			return newer
		}
	}
	again, err := rt.read(c.Network, &c.Attachment)
	switch {
	case err == nil && again == nil:
		return "it was detached"
	case err == nil && again.Since.After(k.listed):
		return newer
	case err == nil && k.Alive != nil && k.Alive(again):
		return "its namespace exists"
	}
	return ""
}

func (rt *Runtime) gcPlugins(ctx context.Context, k *Keep) error {
	if !spec.AtLeast(k.List.CNIVersion, "1.1.0") {
		return nil
	}
	valid := append([]spec.Attachment{}, k.Valid...) // never null
	r := &request{list: k.List, valid: &valid, listed: k.listed}
	var errs []error
	for i := range k.List.Plugins {
		p := &k.List.Plugins[i]
		if _, err := rt.run(ctx, p, r, rt.call(ctx, spec.GC, &Attachment{}), false); err != nil {
			errs = append(errs, fmt.Errorf("failed to GC plugin %s: %w", p.Type, err))
		}
	}
	return errors.Join(errs...)
}
