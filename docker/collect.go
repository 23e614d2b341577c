// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Item is something dead, or something unsure, which is kept.
type Item struct {
	Kind    string `json:"kind"` // endpoint, addresses, network, pool
	Name    string `json:"name"`
	State   string `json:"state"` // dead or unsure
	Why     string `json:"why"`
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// The kinds of items.
const (
	kindEndpoint  = "endpoint"
	kindAddresses = "addresses"
	kindNetwork   = "network"
	kindPool      = "pool"
)

// collector decides for everything that the driver keeps whether it is alive, and removes
// what is dead, since dockerd will never delete it: endpoints of containers that had ended
// when dockerd came back, calls that ended with this process or the node, deletes that
// failed, and what Docker has forgotten.
type collector struct {
	d      *Driver
	grace  time.Duration // younger things are kept
	dry    bool          // remove nothing
	docker *dockerView   // what Docker has; nil without an answer
	found  []Item        // dead and unsure items

	wanted    bool // another endpoint needs what it has
	keepLease bool // its MAC address is requested again
}

// Collection holds the options of Collect.
type Collection struct {
	Grace time.Duration // younger things are kept; at least 10 s, as a start takes its time
	Dry   bool          // remove nothing
}

// Collected is the result of Collect. NotAsked is why Docker was not asked, which is no
// failure: it may not run. Failed names what could not be read or removed.
type Collected struct {
	Items            []Item
	NotAsked, Failed string `json:",omitempty"`
}

// Collect removes what is dead by what the driver itself sees (the boot id, the sandbox and
// the phase) and by what Docker has.
func (d *Driver) Collect(ctx context.Context, in Collection) *Collected {
	c, out := &collector{d: d, grace: max(in.Grace, d.opts.doubt), dry: in.Dry}, &Collected{}
	var askErr error
	if d.opts.engine != nil {
		c.docker, askErr = d.askDocker(ctx, c.grace)
		if errors.Is(askErr, errNotAsked) {
			out.NotAsked, askErr = askErr.Error(), nil
		}
	}
	if err := errors.Join(askErr, c.everything(ctx)); err != nil {
		out.Failed = err.Error()
	}
	out.Items = c.found
	return out
}

// everything checks all that is kept: endpoints first, since they use the rest.
func (c *collector) everything(ctx context.Context) error {
	s := c.d.store
	return errors.Join(
		each(ctx, s.Endpoints.List, func(e *state.Endpoint) error { return c.endpoint(ctx, e.ID) }),
		each(ctx, s.Networks.List, func(n *state.Network) error { return c.network(ctx, n) }),
		each(ctx, s.Leases.List, func(l *state.Allocation) error { return c.lease(ctx, l) }),
		each(ctx, s.Pools.List, c.pool))
}

// each calls do for everything that can be read, and returns the errors.
func each[T any](ctx context.Context, list func() ([]*T, error), do func(*T) error) error {
	all, err := list()
	errs := []error{err}
	for _, x := range all {
		if ctx.Err() != nil { // gc stops for a driver that starts
			return context.Cause(ctx)
		}
		errs = append(errs, do(x))
	}
	return errors.Join(errs...)
}

// settle carries out a verdict.
func (c *collector) settle(kind, name string, v verdict, remove func() error) error {
	if v.state == life.Alive {
		return nil
	}
	i := Item{Kind: kind, Name: name, State: v.state.String(), Why: v.why}
	var err error
	if v.state == life.Dead && !c.dry {
		c.d.opts.Log("%s %s: %s: removing it", kind, name, v.why)
		if err = remove(); err != nil {
			i.Error = err.Error()
		}
		i.Removed = err == nil
	}
	c.found = append(c.found, i)
	return err
}

// facts are those that do not depend on the item.
func (c *collector) facts() *facts {
	return &facts{now: time.Now(), boot: c.d.boot, grace: c.grace, wanted: c.wanted}
}

// endpoint judges with the endpoint's lock held, and completes one that is alive.
func (c *collector) endpoint(ctx context.Context, id string) error {
	return c.d.known(ctx, id, func(ctx context.Context, e *state.Endpoint) error {
		f := c.facts()
		f.look(e)
		if f.docker = c.docker.ofEndpoint(e); f.docker == hasNot {
			f.use = c.d.inUse(e)
		}
		v := f.endpoint(e)
		if v.state == life.Alive && !c.dry {
			return c.d.complete(ctx, f, e)
		}
		lease := unbind
		if f.abandoned(e) && !c.keepLease {
			lease = abandon
		}
		return c.settle(kindEndpoint, short(id, 12), v, func() error { return c.d.remove(ctx, e, lease) })
	})
}

func (f *facts) look(e *state.Endpoint) {
	f.sandbox, f.there, f.unseen = live(e.Sandbox)
	_, none := os.Lstat(e.Sandbox)
	f.missing = errors.Is(none, fs.ErrNotExist)
}

// inUse says whether an endpoint's interface is in its sandbox. Then a container uses it,
// whatever Docker lists: it ends with the sandbox.
func (d *Driver) inUse(e *state.Endpoint) verdict {
	const cannot = "whether its interface is in its sandbox is unknown: %v"
	switch here, err := inSandbox(e); {
	case err != nil:
		return unsure(cannot, err)
	case !here:
		return dead("its sandbox is gone")
	}
	c, _, err := d.sandboxLink(e)
	switch {
	case err == nil:
		c.Close()
		return alive("its interface is in its sandbox")
	case nl.IsNotFound(err):
		return dead("its interface is not in its sandbox")
	}
	return unsure(cannot, err)
}

func (c *collector) network(ctx context.Context, n *state.Network) error {
	f := c.facts()
	if f.docker = c.docker.ofNetwork(n); f.docker == hasNot {
		f.use = c.d.runsOn(n.ID)
	}
	return c.settle(kindNetwork, short(n.ID, 12), f.network(n), func() error { return c.d.deleteNetwork(ctx, n.ID) })
}

// runsOn says whether a container runs on a network.
func (d *Driver) runsOn(network string) verdict {
	all, err := d.store.Endpoints.List()
	out := dead("no container runs on it")
	if err != nil {
		out = unsure("which containers run on it is unknown: %v", err)
	}
	for _, e := range all {
		if e.Network != network {
			continue
		}
		switch v := d.inUse(e); v.state {
		case life.Alive:
			return alive("a container runs on it")
		case life.Unsure:
			out = unsure("endpoint %.12s: %s", e.ID, v.why)
		}
	}
	return out
}

// lease judges a lease without its lock and, unless it is alive, again with the lock held.
func (c *collector) lease(ctx context.Context, l *state.Allocation) error {
	if c.judgeLease(l).state == life.Alive {
		return nil
	}
	ctx, cancel := c.d.limit(ctx)
	defer cancel()
	return c.d.knownLease(ctx, l.ID, func(l *state.Allocation) error {
		return c.settle(kindAddresses, leaseName(l), c.judgeLease(l), func() error { return c.d.dropLease(ctx, l) })
	})
}

func (c *collector) judgeLease(l *state.Allocation) verdict {
	f := c.facts()
	f.docker = c.docker.ofLease(l)
	switch used, err := c.d.used(l); {
	case err != nil:
		f.use = unsure("whether an endpoint uses them is unknown: %v", err)
	case used:
		f.use = alive("an endpoint uses them")
	default:
		f.use = dead("no endpoint uses them")
	}
	return f.lease(l)
}

// used says whether one of our endpoints uses a lease.
func (d *Driver) used(l *state.Allocation) (bool, error) {
	if l.Endpoint == "" {
		return false, nil
	}
	_, err := d.store.Endpoints.Get(l.Endpoint)
	if errors.Is(err, state.ErrUnknown) {
		return false, nil
	}
	return true, err
}

// leaseName is for people. A lease whose request was interrupted has no known address.
func leaseName(l *state.Allocation) string {
	return cmp.Or(strings.Trim(fmt.Sprint(l.Given), "[]"), "asked") + " of " + l.Network
}

func (c *collector) pool(p *state.Pool) error {
	f := c.facts()
	f.docker = c.docker.ofPool(p)
	return c.settle(kindPool, p.Prefix.String()+" of "+p.Network, f.pool(p), func() error { return c.d.store.Pools.Drop(p.ID) })
}

// sweepEvery is the longest pause between two collections of Keep.
const sweepEvery = time.Minute

// Pauses between requests to Docker: askUntil before its first answer, as it may be
// booting, askEvery after it.
const (
	askUntil = time.Minute
	askEvery = 15 * time.Minute
)

// Keep collects periodically until ctx ends, and asks Docker periodically.
func (d *Driver) Keep(ctx context.Context) {
	answers := make(chan *dockerView)
	if d.opts.engine != nil {
		go d.keepAsking(ctx, answers)
	}
	every := max(min(sweepEvery, d.opts.Grace/2), time.Second)
	var logged [2]logged // without and with Docker's answer
	var docker *dockerView
	// The first pauses are short: Docker may have started a container while no driver
	// answered the call that finishes its network.
	for pause := placeTime; ctx.Err() == nil; pause = min(2*pause, every) {
		c := &collector{d: d, grace: d.opts.Grace, docker: docker}
		err := c.everything(ctx)
		h := &logged[0]
		if docker != nil {
			h = &logged[1]
		}
		h.failed(ctx, d, err)
		h.unsure(d, c.found)
		docker = nil // used only once: an old answer proves nothing
		select {
		case docker = <-answers:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// keepAsking asks Docker for Keep, since an answer may take long.
func (d *Driver) keepAsking(ctx context.Context, answers chan<- *dockerView) {
	var h logged
	for {
		s, err := d.askDocker(ctx, d.opts.Grace)
		h.failed(ctx, d, err)
		if s != nil {
			select {
			case answers <- s:
			case <-ctx.Done():
			}
		}
		pause := askEvery
		if err != nil {
			pause = askUntil
		}
		if !clock.Sleep(ctx, pause) {
			return
		}
	}
}

// logged remembers what was logged, so that a repeated failure or a kept item is logged
// once.
type logged struct {
	failure resident.Failure
	reasons map[string]string // by kind and name
}

func (h *logged) failed(ctx context.Context, d *Driver, err error) {
	if ctx.Err() == nil && h.failure.Changed(err) && err != nil {
		d.opts.Log("%v", err)
	}
}

// unsure logs the items that are kept because they are unsure.
func (h *logged) unsure(d *Driver, found []Item) {
	was := h.reasons
	h.reasons = make(map[string]string)
	for _, i := range found {
		if i.State != life.Unsure.String() {
			continue
		}
		name := i.Kind + " " + i.Name
		if h.reasons[name] = i.Why; was[name] != i.Why {
			d.opts.Log("%s is kept: %s", name, i.Why)
		}
	}
}

// evictTime bounds the wait for another endpoint that has the wanted port or address: for
// its sandbox to appear, and for its removal. Two endpoints that wait for each other both
// get an error.
const evictTime = awaitTime + 5*time.Second

// evict removes an endpoint that has a wanted port or address if it is dead, and says
// whether it is gone. A dockerd that was killed starts its containers as soon as it is
// back, with their old ports and addresses, and Keep may collect only a minute later. Age
// does not make an endpoint dead here, unless it is between two calls or its sandbox
// never appeared: its start or its end was killed there, or is about to continue, so
// evict waits for that.
func (d *Driver) evict(ctx context.Context, id string, keepLease bool) (gone bool) {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	var h logged
	for {
		c := &collector{d: d, grace: math.MaxInt64, wanted: true, keepLease: keepLease}
		if err := c.endpoint(ctx, id); err != nil {
			d.opts.Log("evict endpoint %.12s: %v", id, err)
		}
		h.unsure(d, c.found)
		e, err := d.store.Endpoints.Get(id)
		if err != nil {
			return errors.Is(err, state.ErrUnknown)
		}
		if !passing(e) || !clock.Sleep(ctx, awaitEvery) {
			return false
		}
	}
}
