// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/engine"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/once"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// Engine is what is asked of Docker, by nobody whom Docker waits for.
type Engine interface {
	Root(context.Context) (string, error)
	Networks(context.Context) ([]engine.Network, error)
	Endpoints(ctx context.Context, network string) (all map[string]engine.Endpoint, known bool, err error)
}

// How often Docker is asked: until it has answered, as it may be booting, and
// then.
const (
	askUntil = time.Minute
	askEvery = 15 * time.Minute
	// inDoubt is the least age of what Docker is said not to have: it stores a
	// network after the driver made it.
	inDoubt = 10 * time.Second
)

func (d *Driver) keepAsking(ctx context.Context) {
	var last once.Failure
	for {
		pause := askEvery
		err := d.reconcile(ctx, &sweep{grace: d.opts.Grace})
		if err != nil {
			pause = askUntil
		}
		d.news(ctx, &last, err)
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

// errNotAsked is wrapped when Docker's word is missing.
var errNotAsked = errors.New("Docker is not asked what it has")

// reconcile removes what Docker has forgotten: a network, with its pools, whose
// deletion never got here, an endpoint that was disconnected meanwhile, and
// addresses that were never an endpoint's of ours.
func (d *Driver) reconcile(ctx context.Context, s *sweep) error {
	asked := time.Now().Add(-max(s.grace, d.opts.doubt))
	if err := d.isOurs(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotAsked, err)
	}
	list, err := d.opts.Engine.Networks(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAsked, err)
	}
	theirs := make(map[string]bool, len(list))
	for i := range list {
		theirs[list[i].ID] = true
	}
	all, err := d.store.Networks()
	errs := []error{err}
	for _, n := range all {
		if theirs[n.ID] {
			errs = append(errs, d.reconcileEndpoints(ctx, s, n.ID, asked))
		} else if !n.Deleted && n.Since.Before(asked) {
			errs = append(errs, d.forgottenNetwork(ctx, s, n.ID))
		}
	}
	return errors.Join(append(errs, d.reconcilePools(s, list, asked), d.reconcileLeases(ctx, s, list, asked))...)
}

// forgottenNetwork waits for containers that run on it, as after a loss of
// Docker's own state.
func (d *Driver) forgottenNetwork(ctx context.Context, s *sweep, id string) error {
	all, err := d.store.Endpoints()
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Network == id && d.inUse(e) {
			return nil
		}
	}
	i := Item{Kind: kindNetwork, Name: short(id, 12), Why: "Docker has it no more"}
	return s.take(d, i, func() error { return d.deleteNetwork(ctx, id) })
}

// isOurs refuses the answers of another daemon of this host, or of what only
// looks like Docker: to it every network would look deleted.
func (d *Driver) isOurs(ctx context.Context) error {
	root, err := d.opts.Engine.Root(ctx)
	if err != nil {
		return err
	}
	if resolved(root) != resolved(d.opts.DataRoot) {
		return fmt.Errorf("the one that answers has its data in %s, not in %s (--docker, --data-root)", root, d.opts.DataRoot)
	}
	return nil
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// reconcileEndpoints looks for those that were disconnected while nobody was
// there to be told.
func (d *Driver) reconcileEndpoints(ctx context.Context, s *sweep, network string, asked time.Time) error {
	all, err := d.store.Endpoints()
	errs := []error{err}
	var theirs map[string]engine.Endpoint
	for _, e := range all {
		if e.Network != network || e.Phase != state.Joined || !e.Changed.Before(asked) {
			continue
		}
		if theirs == nil {
			var known bool
			if theirs, known, err = d.opts.Engine.Endpoints(ctx, network); err != nil || !known {
				return errors.Join(append(errs, err)...)
			}
		}
		if _, has := theirs[e.ID]; !has {
			errs = append(errs, d.forgotten(ctx, s, e.ID, asked))
		}
	}
	return errors.Join(errs...)
}

// forgotten removes an endpoint that Docker does not list and whose interface is
// not in its sandbox. One that is there serves a container that runs: it goes
// with the sandbox.
func (d *Driver) forgotten(ctx context.Context, s *sweep, id string, asked time.Time) error {
	return d.known(ctx, id, func(ctx context.Context, e *state.Endpoint) error {
		if e.Phase != state.Joined || !e.Changed.Before(asked) || d.inUse(e) {
			return nil
		}
		i := Item{Kind: kindEndpoint, Name: short(id, 12), Why: "Docker has it no more"}
		return s.take(d, i, func() error { return d.remove(ctx, e, unbind) })
	})
}

// inUse says whether the interface is in the sandbox, or may be.
func (d *Driver) inUse(e *state.Endpoint) bool {
	if here, unsure := inSandbox(e); !here {
		return unsure != nil
	}
	c, _, err := d.sandboxLink(e)
	if err == nil {
		c.Close()
	}
	return !nl.IsNotFound(err)
}

// reconcilePools drops pools that no network of Docker's can have: none, of
// whatever driver, was made with the same --ipam-opt.
func (d *Driver) reconcilePools(s *sweep, list []engine.Network, asked time.Time) error {
	all, err := d.store.Pools()
	errs := []error{err}
	for _, p := range all {
		if p.Since.Before(asked) && !wanted(p, list) {
			i := Item{Kind: kindPool, Name: p.Prefix.String() + " of " + p.Network, Why: "no network of Docker's uses it"}
			errs = append(errs, s.take(d, i, func() error { return d.store.DropPool(p.ID) }))
		}
	}
	return errors.Join(errs...)
}

func wanted(p *state.Pool, list []engine.Network) bool {
	for i := range list {
		options := list[i].IPAM.Options
		if options[optNetwork] == p.Network || len(p.Options) > 0 && maps.Equal(options, p.Options) || len(p.Options) == 0 && options[optConf] != "" {
			return true
		}
	}
	return false
}

// Collection says what Collect is to do.
type Collection struct {
	Grace time.Duration // what is younger stays; at least 10 s, as a start takes its time
	Dry   bool          // remove nothing
}

// Collected is what Collect has found. NotAsked tells why Docker's word is
// missing, which is no failure: it may not run. Failed tells what could not be
// read or removed.
type Collected struct {
	Items            []Item
	NotAsked, Failed string `json:",omitempty"`
}

// Collect is Sweep on demand, after which it asks Docker too.
func (d *Driver) Collect(ctx context.Context, c Collection) *Collected {
	s, out := &sweep{grace: max(c.Grace, d.opts.doubt), dry: c.Dry}, &Collected{}
	err := d.sweep(ctx, s)
	if d.opts.Engine != nil {
		more := d.reconcile(ctx, s)
		if errors.Is(more, errNotAsked) {
			out.NotAsked, more = more.Error(), nil
		}
		err = errors.Join(err, more)
	}
	if err != nil {
		out.Failed = err.Error()
	}
	out.Items = s.found
	return out
}
