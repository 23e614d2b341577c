// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// Options say where to look and whether to remove.
type Options struct {
	Paths      paths.Paths
	Runtime    *chain.Runtime // finds plugins for the DELs of cached results
	NewSession func() *plugin.Session

	Grace  time.Duration   // keep anything younger
	Live   map[string]bool // the container ids that a runtime lists; nil without a list
	Driver bool            // run the Docker driver's gc too, if it has any state
	Apply  bool

	DelTime  time.Duration // how long the DEL of a plugin may take; default half a minute
	LockTime time.Duration // how long to wait for another gc; default a minute
}

// The defaults of DelTime and LockTime.
const (
	delTime  = 30 * time.Second
	turnTime = time.Minute
)

// Report lists what gc found, and with Options.Apply what it removed.
type Report struct {
	Attachments []*Attachment // dead and unsure ones
	Stray       []*Attachment // single objects without a known attachment
	Legacy      *Legacy
	Alive       int // how many attachments are alive

	alive []*Attachment
}

// All are the attachments and the stray objects.
func (r *Report) All() []*Attachment { return slices.Concat(r.Attachments, r.Stray) }

// Dead counts the dead attachments and stray objects that are not removed.
func (r *Report) Dead() (n int) {
	for _, a := range r.All() {
		if a.State == Dead && !a.Removed {
			n++
		}
	}
	return n
}

// Run examines the node and, with Apply, removes what is dead. The error has everything
// that could not be read or removed; the report covers all the rest.
func Run(ctx context.Context, o Options) (*Report, error) {
	unlock, err := o.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := newCollector(o)
	docker, derr := askDriver(ctx, &o) // first: gc must not examine what the driver detaches
	report, err := c.look(ctx)
	if o.Apply {
		err = errors.Join(err, c.apply(ctx, report))
	}
	report.Stray = append(report.Stray, docker...)
	return report, errors.Join(derr, err, c.seen.save(o.Paths.Run))
}

// lock makes gcs take turns, also those that remove nothing: all of them write the file of
// first sightings.
func (o *Options) lock(ctx context.Context) (unlock func(), err error) {
	if err := durable.MakeDir(o.Paths.Run, "locks"); err != nil {
		return nil, fmt.Errorf("lock gc: %w", err)
	}
	limit := cmp.Or(o.LockTime, turnTime)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("another gc is still running after %v", limit))
	defer cancel()
	return durable.Lock(ctx, filepath.Join(o.Paths.Run, "locks", "node-gc.lock"))
}

// collector is one run of gc.
type collector struct {
	Options
	evidence
	seen  *seen
	world *world
	stray []*Attachment
}

func newCollector(o Options) *collector { return &collector{Options: o, seen: loadSeen(o.Paths.Run)} }

// look gathers the evidence and judges it.
func (c *collector) look(ctx context.Context) (*Report, error) {
	s := c.NewSession()
	defer s.Close()
	c.k = kernel.OfSession(s)
	boot, err := ipam.ReadBoot(c.Paths.Proc)
	c.fail(err)
	c.boot = boot
	c.world = c.newWorld()
	report := &Report{Attachments: []*Attachment{}}
	all := c.gather(ctx)
	c.settle(ctx, all)
	for _, a := range all {
		a.State, a.Why = c.world.judge(a)
		switch {
		case a.State == Alive:
			report.Alive++
			report.alive = append(report.alive, a)
		case len(a.Objects) > 0:
			report.Attachments = append(report.Attachments, a)
		}
	}
	report.Stray = c.strays()
	report.Legacy, err = legacyRules(ctx, c.Paths.Proc, report.Attachments, func(a *Attachment) bool { return a.State == Dead })
	c.fail(err)
	return report, errors.Join(c.errs...)
}

// apply removes what is dead, each in its own session, so that a failure does not stop the
// others.
func (c *collector) apply(ctx context.Context, report *Report) error {
	errs := []error{record.New(c.Paths.Run).SweepClaims(), record.OfDrivers(c.Paths.State).SweepClaims()}
	for _, a := range report.All() {
		if a.State != Dead || ctx.Err() != nil {
			continue
		}
		if err := c.remove(ctx, a); err != nil {
			a.Error = err.Error()
			errs = append(errs, fmt.Errorf("remove %s: %w", a.Name(), err))
		}
	}
	if report.Legacy != nil {
		var err error // an attachment that stays keeps its rules
		report.Legacy, err = legacyRules(ctx, c.Paths.Proc, report.Attachments, func(a *Attachment) bool { return a.Removed })
		errs = append(errs, err)
	}
	if report.Legacy != nil {
		errs = append(errs, report.Legacy.Remove(ctx))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// Judged are the attachments of one network, living ones included.
type Judged struct {
	Attachments []*Attachment
	Nameless    []*Attachment // without a known network, and not dead: mostly links

	world *world
}

// Judge examines the whole node and judges the attachments of one network as Run does, for
// a GC of that network. It removes nothing. The error has everything that could not be
// read; the list covers all the rest.
func Judge(ctx context.Context, o Options, network string) (*Judged, error) {
	c := newCollector(o)
	report, err := c.look(ctx)
	j := &Judged{world: c.world}
	for _, a := range append(report.alive, report.Attachments...) {
		switch {
		case a.Network == "" && a.State != Dead:
			j.Nameless = append(j.Nameless, a)
		case a.Network == network && a.pendingDriver == "": // else its driver must detach it
			j.Attachments = append(j.Attachments, a)
		}
	}
	return j, errors.Join(err, c.seen.save(o.Paths.Run))
}

// Lives judges a dead attachment again, by what its cached result says now.
func (j *Judged) Lives(c *chain.Cached) bool {
	a := &Attachment{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Owner: owner.Of(c.Network, c.ContainerID, c.IfName)}
	if i := slices.IndexFunc(j.Attachments, func(x *Attachment) bool { return x.Owner == a.Owner }); i >= 0 {
		a = j.Attachments[i]
	}
	a.at(c.NetNS, nil)
	a.seen(c.Since)
	state, _ := j.world.life(a)
	return state != life.Dead && !j.world.earlier(a)
}
