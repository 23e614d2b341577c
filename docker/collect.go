// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
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
		each(ctx, s.Leases.List, func(l *state.Lease) error { return c.lease(ctx, l) }),
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
func (c *collector) lease(ctx context.Context, l *state.Lease) error {
	if c.judgeLease(l).state == life.Alive {
		return nil
	}
	ctx, cancel := c.d.limit(ctx)
	defer cancel()
	return c.d.knownLease(ctx, l.ID, func(l *state.Lease) error {
		return c.settle(kindAddresses, leaseName(l), c.judgeLease(l), func() error { return c.d.dropLease(ctx, l) })
	})
}

func (c *collector) judgeLease(l *state.Lease) verdict {
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
func (d *Driver) used(l *state.Lease) (bool, error) {
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
func leaseName(l *state.Lease) string {
	if len(l.Given) == 0 {
		return "asked of " + l.Network
	}
	return fmt.Sprintf("%s of %s", strings.Trim(fmt.Sprint(l.Given), "[]"), l.Network)
}

func (c *collector) pool(p *state.Pool) error {
	f := c.facts()
	f.docker = c.docker.ofPool(p)
	return c.settle(kindPool, p.Prefix.String()+" of "+p.Network, f.pool(p), func() error { return c.d.store.Pools.Drop(p.ID) })
}
