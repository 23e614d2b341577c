// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
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
	Applied     bool          `json:"applied"`
	Attachments []*Attachment `json:"attachments"` // dead and unsure ones
	Stray       []*Stray      `json:"stray,omitempty"`
	Legacy      *Legacy       `json:"iptablesLegacy,omitempty"`
	Alive       int           `json:"alive"` // how many attachments are alive

	alive []*Attachment
}

// Dead counts the dead attachments and strays that are not removed.
func (r *Report) Dead() (n int) {
	for _, a := range r.Attachments {
		if a.State == Dead && !a.Removed {
			n++
		}
	}
	for _, s := range r.Stray {
		if s.State == Dead && !s.Removed {
			n++
		}
	}
	return n
}

func (r *Report) dead() (list []dead) {
	for _, a := range r.Attachments {
		if a.State == Dead && a.ContainerID != "" {
			list = append(list, dead{iptnft.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}, a.Addrs})
		}
	}
	return list
}

// Run examines the node and, with Apply, removes what is dead. The error has everything
// that could not be read or removed; the report covers all the rest.
func Run(ctx context.Context, o Options) (*Report, error) {
	unlock, err := o.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := &collector{Options: o, seen: loadSeen(o.Paths.Run)}
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

type collector struct {
	Options
	seen  *seen
	world *world
}

// look gathers the evidence and judges it.
func (c *collector) look(ctx context.Context) (*Report, error) {
	s := c.NewSession()
	defer s.Close()
	ev := &evidence{k: kernel.OfSession(s), rt: c.Runtime, paths: c.Paths}
	boot, err := ipam.ReadBoot(c.Paths.Proc)
	ev.fail(err)
	ev.boot = boot
	c.world = c.newWorld(boot.Since)
	report := &Report{Applied: c.Apply, Attachments: []*Attachment{}}
	all := ev.gather(ctx)
	c.world.driver = func(id string) bool { return ev.driver[id] }
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
	report.Stray = c.strays(ev)
	report.Legacy, err = legacyRules(ctx, c.Paths.Proc, report.dead())
	ev.fail(err)
	return report, errors.Join(ev.errs...)
}

func (c *collector) newWorld(boot time.Time) *world {
	w := &world{now: time.Now(), boot: boot, grace: c.Grace, carries: c.carries, seesAll: life.SeesProcesses}
	held := sync.OnceValue(func() life.Held { return life.HeldBy(c.Paths.Proc) })
	w.namespace = func(path string, was *life.Mark) (life.State, string) {
		state, why := life.Told(path, was, c.Paths.Proc, c.Paths.Run)
		if state == life.Dead && was != nil {
			return held().Doubt(was, why)
		}
		return state, why
	}
	if c.Live != nil {
		w.listed = func(id string) bool { return c.Live[id] }
	}
	w.firstSeen = func(a *Attachment) time.Time { return c.seen.since(a.Owner, w.now) }
	links := sync.OnceValues(func() (map[string]string, error) { return markedLinks(c.Paths.Proc) })
	w.marked = func(o owner.Key) (string, error) {
		where, err := links()
		return aliasOrName(where, o), err
	}
	all := sync.OnceValues(func() (map[netip.Addr]string, error) { return life.Addresses(c.Paths.Proc) })
	w.inUse = func(addrs []netip.Addr) (string, error) {
		where, err := all()
		for _, a := range addrs {
			if at, ok := where[a]; ok {
				return at, nil
			}
		}
		return "", err
	}
	return w
}

// apply removes what is dead, each attachment in its own session, so that a failure does
// not stop the others.
func (c *collector) apply(ctx context.Context, report *Report) error {
	errs := []error{record.New(c.Paths.Run).SweepClaims(), record.OfDrivers(c.Paths.State).SweepClaims()}
	for _, a := range report.Attachments {
		if a.State != Dead || ctx.Err() != nil {
			continue
		}
		if err := c.remove(ctx, a); err != nil {
			a.Error = err.Error()
			errs = append(errs, fmt.Errorf("remove %s: %w", a.Name(), err))
		}
	}
	if report.Legacy != nil {
		errs = append(errs, report.Legacy.Remove(ctx))
	}
	return errors.Join(append(errs, c.applyStrays(ctx, report.Stray), ctx.Err())...)
}

// key is the key of an object without an attachment in the file of first sightings.
func key(kind, name string) owner.Key { return owner.Of(kind, name, "") }
