// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gc finds and removes what dead attachments left on a node. It implements `patchbay
// gc` without a network.
//
// gc collects everything that names an attachment: records, results that runtimes cached, address
// files, links, firewall elements, rules of the reference plugins. It groups these traces by
// attachment, and a pure function (inventory.Judge) decides which attachments are dead. gc removes only those
// that are certainly dead (remove). For every other attachment that may be dead, the report says
// why gc keeps it.
//
// # What protects an ADD in progress
//
// gc claims an attachment and then looks for its records. Our ADD does the opposite: it writes
// its record first, and then looks for a claim (record.Seize). So at least one of the two sees
// the other: gc keeps the attachment, or the ADD waits for gc. An ADD or DEL locks its records
// while it works, and gc skips locked records.
//
// An ADD of the reference plugins has no record. gc keeps its attachment because its namespace
// exists and its files are younger than the grace period. gc deletes links by their index, so
// it cannot delete a new link that has an old name. A second gc waits for the first.
package gc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
)

// Options say what gc examines and whether it removes what is dead.
type Options struct {
	Paths      paths.Paths
	Runtime    *chain.Runtime // finds the plugins for the DELs
	NewSession func() *plugin.Session

	Grace  time.Duration   // keep what is younger than this
	Live   map[string]bool // the container ids that a runtime lists; nil if no runtime was asked
	Driver bool            // also run the Docker driver's gc, if the driver has any state
	Apply  bool

	DelTime  time.Duration // how long the DEL of one plugin may take; if 0, half a minute
	LockTime time.Duration // how long to wait for another gc; if 0, a minute

	// SettleTime is how long to wait for the kernel to delete veths of namespaces that are gone. The
	// kernel deletes them late, many at a time. If 0, as inventory.Settling says.
	SettleTime time.Duration
}

// These are the values of DelTime and LockTime if they are 0.
const (
	delTime  = 30 * time.Second
	turnTime = time.Minute
)

// Report lists what gc found. With Options.Apply it also says what gc removed.
type Report struct {
	Attachments []*Candidate // those that are dead or unsure
	Stray       []*Candidate // single objects that belong to no known attachment
	Legacy      *Legacy
	Alive       int // the number of attachments that are alive

	alive []*Candidate
}

// All returns the attachments and the stray objects in one list.
func (r *Report) All() []*Candidate { return slices.Concat(r.Attachments, r.Stray) }

// Dead counts the dead attachments and stray objects that are still there.
func (r *Report) Dead() (n int) {
	for _, a := range r.All() {
		if a.State == Dead && !a.Removed {
			n++
		}
	}
	return n
}

// Bury adds an attachment that is dead although its namespace exists, as only the caller knows.
func (r *Report) Bury(c *Candidate) {
	same := func(x *Candidate) bool { return x.Owner == c.Owner }
	if i := slices.IndexFunc(r.alive, same); i >= 0 {
		c.Objects = append(c.Objects, r.alive[i].Objects...)
		r.alive, r.Alive = slices.Delete(r.alive, i, i+1), r.Alive-1
	}
	r.Attachments = append(slices.DeleteFunc(r.Attachments, same), c)
}

// Run examines the node and, with Apply, removes what is dead. If something cannot be read or
// removed, the error says so, and the report covers the rest.
func Run(ctx context.Context, o Options) (*Report, error) {
	unlock, err := o.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := newCollector(o)
	docker, derr := askDriver(ctx, &o) // first, because gc must not examine what the driver is detaching
	report, err := c.collect(ctx)
	if o.Apply {
		err = errors.Join(err, c.apply(ctx, report))
	}
	report.Stray = append(report.Stray, docker...)
	return report, errors.Join(derr, err, c.seen.save(o.Paths.Run))
}

// lock makes a second gc wait, even one that removes nothing. Each gc writes the file that says
// when objects were first seen.
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
	stray []*Candidate
}

func newCollector(o Options) *collector { return &collector{Options: o, seen: loadSeen(o.Paths.Run)} }

// collect collects the traces of all attachments and judges them.
func (c *collector) collect(ctx context.Context) (*Report, error) {
	s := c.NewSession()
	defer s.Close()
	c.s, c.k = s, kernel.OfSession(s)
	boot, err := ipam.ReadBoot(c.Paths.Proc)
	c.fail(err)
	c.boot = boot
	c.world = c.newWorld()
	report := &Report{Attachments: []*Candidate{}}
	for _, a := range c.gather(ctx) {
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
	report.Legacy, err = legacyRules(ctx, c.Paths.Proc, report.Attachments, func(a *Candidate) bool { return a.State == Dead })
	c.fail(err)
	return report, errors.Join(c.errs...)
}

// apply removes what is dead. Each attachment has its own session, so that one failure does not
// stop the others.
func (c *collector) apply(ctx context.Context, report *Report) error {
	errs := []error{record.New(c.Paths.Run).SweepClaims(""), record.OfDrivers(c.Paths.State).SweepClaims("")}
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
		var err error // iptables-legacy keeps the rules of an attachment that could not be removed
		report.Legacy, err = legacyRules(ctx, c.Paths.Proc, report.Attachments, func(a *Candidate) bool { return a.Removed })
		errs = append(errs, err)
	}
	if report.Legacy != nil {
		errs = append(errs, report.Legacy.Remove(ctx))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// Judged lists the attachments of one network, including living ones.
type Judged struct {
	Attachments []*Candidate
	Nameless    []*Candidate // attachments without a known network that are not dead; most are only a link

	world *world
}

// Judge examines the whole node. It judges the attachments of one network as Run does, for a GC
// of that network. It removes nothing. If something cannot be read, the error says so, and the
// list covers the rest.
func Judge(ctx context.Context, o Options, network string) (*Judged, error) {
	c := newCollector(o)
	report, err := c.collect(ctx)
	j := &Judged{world: c.world}
	for _, a := range append(report.alive, report.Attachments...) {
		switch {
		case a.Network == "" && a.State != Dead:
			j.Nameless = append(j.Nameless, a)
		case a.Network == network && !a.pending(): // the attachment's driver must not still have to detach it
			j.Attachments = append(j.Attachments, a)
		}
	}
	return j, errors.Join(err, c.seen.save(o.Paths.Run))
}

// Lives judges an attachment again that was dead, because its cached result may have changed since.
func (j *Judged) Lives(c *chain.Cached) bool {
	a := &Candidate{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Owner: owner.Of(c.Network, c.ContainerID, c.IfName)}
	if i := slices.IndexFunc(j.Attachments, func(x *Candidate) bool { return x.Owner == a.Owner }); i >= 0 {
		a = j.Attachments[i]
	}
	a.evidence.Space(c.Place(), nil)
	a.evidence.Date(c.Since)
	state, _ := j.world.judge(a)
	return state != Dead
}

// seenFile stores when gc first saw links, elements and rules, because these have no date of
// their own.
const seenFile = "gc-seen.json"

type seen struct {
	path  string
	first map[owner.Key]time.Time // as read from the file
	now   map[owner.Key]time.Time // as it will be written, without objects that are gone
}

// loadSeen reads the file. If the file is missing or broken, it starts with an empty list, and
// gc sees every object for the first time.
func loadSeen(runDir string) *seen {
	s := &seen{path: filepath.Join(runDir, seenFile), now: make(map[owner.Key]time.Time)}
	data, err := durable.Read(s.path)
	if err == nil && json.Unmarshal(data, &s.first) != nil {
		s.first = nil
	}
	return s
}

// since returns when gc first saw an owner. If the owner is new, gc sees it now.
func (s *seen) since(o owner.Key, now time.Time) time.Time {
	t, ok := s.first[o]
	if !ok || t.After(now) {
		t = now
	}
	s.now[o] = t
	return t
}

func (s *seen) save(runDir string) error {
	if len(s.now) == 0 {
		return durable.Remove(s.path)
	}
	if err := durable.MakeDir(runDir); err != nil {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	data, err := json.Marshal(s.now)
	if err != nil {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	if err := durable.Write(s.path, data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	return nil
}
