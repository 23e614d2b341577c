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

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Item is an object that is dead, or one that may be dead and is kept.
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

// collector decides which of the driver's objects are alive, and removes the dead ones. dockerd
// will never delete those itself. Several things leave dead objects: a container ended while
// dockerd was not running, this process or the node died during a call, a delete failed, or
// Docker forgot an object.
type collector struct {
	d      *Driver
	grace  time.Duration // younger objects are kept
	dry    bool          // remove nothing
	docker *dockerView   // what Docker has; nil if Docker did not answer
	found  []Item        // objects that are dead or unsure

	wanted    bool // another endpoint wants the address or port of this one
	keepLease bool // Docker has requested an address for the same MAC address again
}

// Collection holds the options of Collect.
type Collection struct {
	Grace time.Duration // younger objects are kept; at least 10 s, because a start takes time
	Apply bool          // remove what is dead; otherwise only list it
	Dry   bool          // the opposite of Apply, for drivers of earlier releases: they ignore Apply, and remove unless Dry is set
}

// Collected is the result of Collect. NotAsked says why Docker could not be asked. That is no
// failure, because Docker may not be running. Failed says what could not be read or removed.
type Collected struct {
	Items            []Item
	NotAsked, Failed string `json:",omitempty"`
}

// Collect lists what is dead, and removes it with Apply. Two things decide: the facts that the driver itself can see
// (boot id, sandbox, phase), and the objects that Docker has.
func (d *Driver) Collect(ctx context.Context, in Collection) *Collected {
	c, out := &collector{d: d, grace: max(in.Grace, d.opts.doubt), dry: !in.Apply}, &Collected{}
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

// everything checks all objects. Endpoints come first, because they use the others.
func (c *collector) everything(ctx context.Context) error {
	s := c.d.state
	return errors.Join(
		each(ctx, s.Endpoints.List, func(e *state.Endpoint) error { return c.endpoint(ctx, e.ID) }),
		each(ctx, s.Networks.List, func(n *state.Network) error { return c.network(ctx, n) }),
		each(ctx, s.Leases.List, func(l *state.Allocation) error { return c.lease(ctx, l) }),
		each(ctx, s.Pools.List, c.pool))
}

// each calls do for every object that can be read, and joins the errors.
func each[T any](ctx context.Context, list func() ([]*T, error), do func(*T) error) error {
	all, err := list()
	errs := []error{err}
	for _, x := range all {
		if ctx.Err() != nil { // gc stops when a driver starts
			return context.Cause(ctx)
		}
		errs = append(errs, do(x))
	}
	return errors.Join(errs...)
}

// settle carries out a verdict. Unless the object is alive, settle reports it.
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

// facts returns the facts that are the same for all objects.
func (c *collector) facts() *evidence {
	return &evidence{now: time.Now(), boot: c.d.boot, grace: c.grace, wanted: c.wanted}
}

// endpoint judges an endpoint while it holds the endpoint's lock. If it is alive, endpoint
// finishes its setup.
func (c *collector) endpoint(ctx context.Context, id string) error {
	return c.d.enterIfExists(ctx, id, func(ctx context.Context, e *state.Endpoint) error {
		f := c.facts()
		f.readSandbox(e)
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

func (f *evidence) readSandbox(e *state.Endpoint) {
	f.sandbox, f.exists, f.unseen = live(e.Sandbox)
	_, none := os.Lstat(e.Sandbox)
	f.missing = errors.Is(none, fs.ErrNotExist)
}

// inUse judges an endpoint by its interface. If the interface is in the endpoint's sandbox, a
// container uses it, even if Docker does not list the container. If the sandbox is gone, the
// endpoint is dead.
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

// runsOn judges a network by whether a container runs on it.
func (d *Driver) runsOn(network string) verdict {
	all, err := d.state.Endpoints.List()
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

// lease first judges a lease without its lock. Unless the lease is alive, lease takes the lock,
// judges again, and does what the verdict says.
func (c *collector) lease(ctx context.Context, l *state.Allocation) error {
	if c.judgeLease(l).state == life.Alive {
		return nil
	}
	ctx, cancel := c.d.limit(ctx)
	defer cancel()
	return c.d.leaseIfExists(ctx, l.ID, func(l *state.Allocation) error {
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

// used reports whether one of our endpoints uses a lease.
func (d *Driver) used(l *state.Allocation) (bool, error) {
	if l.Endpoint == "" {
		return false, nil
	}
	_, err := d.state.Endpoints.Get(l.Endpoint)
	if errors.Is(err, state.ErrUnknown) {
		return false, nil
	}
	return true, err
}

// leaseName returns a name for messages. If the request was interrupted, the lease has no
// address that could be printed.
func leaseName(l *state.Allocation) string {
	return cmp.Or(strings.Trim(fmt.Sprint(l.Given), "[]"), "asked") + " of " + l.Network
}

func (c *collector) pool(p *state.Pool) error {
	f := c.facts()
	f.docker = c.docker.ofPool(p)
	return c.settle(kindPool, p.Prefix.String()+" of "+p.Network, f.pool(p), func() error { return c.d.state.Pools.Drop(p.ID) })
}

// sweepEvery is the longest pause between two collections of Keep.
const sweepEvery = time.Minute

// Keep asks Docker every askUntil until Docker's first answer, because Docker may be booting. Then it asks every
// askEvery.
const (
	askUntil = time.Minute
	askEvery = 15 * time.Minute
)

// Keep collects dead objects periodically until ctx ends. It also asks Docker periodically what
// Docker has.
func (d *Driver) Keep(ctx context.Context) {
	answers := make(chan *dockerView)
	if d.opts.engine != nil {
		go d.keepAsking(ctx, answers)
	}
	every := max(min(sweepEvery, d.opts.Grace/2), time.Second)
	var logged [2]logged // the lines logged before Docker's first answer, and after it
	var docker *dockerView
	// The first pauses are short. If no driver was running when Docker started a container, Docker's
	// call that finishes the container's network was lost.
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

// keepAsking asks Docker in a separate goroutine, because an answer may take long.
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

// logged holds what has been logged, so that each failure and each kept object is logged only
// once.
type logged struct {
	failure resident.Failure
	reasons map[string]string // the reason, by kind and name
}

func (h *logged) failed(ctx context.Context, d *Driver, err error) {
	if ctx.Err() == nil && h.failure.Changed(err) && err != nil {
		d.opts.Log("%v", err)
	}
}

// unsure logs the objects that are kept because they may be alive.
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

// evictTime limits how long a call waits for another endpoint that has the wanted port or
// address. The call waits until the other's sandbox appears, or until the other is removed. If
// two endpoints wait for each other, both get an error.
const evictTime = awaitTime + 5*time.Second

// evict removes a dead endpoint that has a wanted port or address, and reports whether it is gone.
// Keep would remove it too late: after a kill, dockerd starts its containers again at once with
// their old ports and addresses, but Keep may collect only a minute later. Age proves an endpoint
// dead only in two cases: Docker's next call is missing, or the sandbox has not appeared. Then
// Docker was killed or will continue soon, so evict waits.
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
		e, err := d.state.Endpoints.Get(id)
		if err != nil {
			return errors.Is(err, state.ErrUnknown)
		}
		if !passing(e) || !clock.Sleep(ctx, awaitEvery) {
			return false
		}
	}
}
