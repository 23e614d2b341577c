// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
)

// tendStore keeps what the store has of this host: its node, its lease, its
// blocks and its containers. A store that is away is tried again.
func (a *Agent) tendStore(ctx context.Context) {
	for ctx.Err() == nil {
		began, before := time.Now(), a.said.changes()+a.mirror.changes()
		err := a.tend(ctx)
		took := time.Since(began)
		if ctx.Err() == nil && !errors.Is(err, errNoUplink) {
			a.said.tell("store", err)
		}
		if a.said.changes()+a.mirror.changes() != before {
			ring(a.local) // for the kernel, the cache and the status
		}
		pause := reconcileEvery
		if err != nil {
			pause = jitter(againAfter)
		}
		if a.await(ctx, pause); err == nil {
			sleep.For(ctx, settle(took))
		}
	}
}

// errNoUplink is told as what it is, and is no failure of the store.
var errNoUplink = errors.New("no uplink")

// await returns when there may be something to do.
func (a *Agent) await(ctx context.Context, most time.Duration) {
	var lost <-chan struct{}
	if a.lease != nil {
		lost = a.lease.Lost()
	}
	select {
	case <-ctx.Done():
	case <-lost:
	case <-a.upstream:
	case <-time.After(most):
	}
}

// tend is one look at everything of ours in the store. What concerns one network
// does not keep the others waiting.
func (a *Agent) tend(ctx context.Context) error {
	self, err := a.node()
	if a.said.tell("uplink", err); err != nil {
		return errNoUplink
	}
	w, _, synced := a.mirror.snapshot()
	if !synced {
		return nil // who has not heard the store has nothing to tell it
	}
	if err := a.ensureLease(ctx); err != nil {
		return fmt.Errorf("begin lease: %w", err)
	}
	if err := a.putNode(ctx, self, w.behind(&a.told)); err != nil {
		return fmt.Errorf("put node: %w", err)
	}
	networks, _ := a.usable(&w, self.Underlay) // the other loop says why not
	wrong := map[string]error{}
	for i := range networks {
		wrong[networks[i].Name] = a.claim(ctx, &w, &networks[i])
	}
	a.said.tellAll("block of", wrong)
	return errors.Join(a.leave(ctx, &w), a.publish(ctx, &w))
}

// node is what others need to know of this host.
func (a *Agent) node() (store.Node, error) {
	addrs := a.opts.Underlay
	if len(addrs) == 0 {
		var err error
		if addrs, err = uplinkAddrs(a.opts.Paths.Proc); err != nil {
			return store.Node{}, err
		}
	}
	return store.Node{ID: a.self.ID, Name: a.opts.Name, Underlay: addrs, VTEP: mesh.VTEP(a.self.ID).String(), Port: a.opts.Port, Seen: a.wall().UTC().Round(0), Lasting: true}, nil
}

// seenEvery is how often the store is told that this host is there, beside the
// lease: it is what is known when the lease is gone. All hosts hear of each time,
// and only who reclaims wants to know.
func (a *Agent) seenEvery() time.Duration {
	const part = 24
	return min(max(a.opts.Reclaim/part, seenLeast), time.Hour)
}

const seenLeast = time.Minute

// LeastReclaim is how long Options.Reclaim should be at least: for some time a host
// that is well may have no lease, and then it counts as gone since it last wrote
// that it is there. Its block must not be taken while its containers run.
func LeastReclaim(ttl time.Duration) time.Duration {
	const times = 10
	return times * max(ttl, seenLeast)
}

// putNode writes down this host when something of it is new, or the store has
// lost it.
func (a *Agent) putNode(ctx context.Context, self store.Node, lost bool) error {
	if !lost && sameNode(a.told, self) && self.Seen.Sub(a.told.Seen).Abs() < a.seenEvery() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	nodes := a.opts.Store.Nodes()
	was, err := nodes.Get(ctx, self.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		_, err = nodes.Create(ctx, self, nil)
	case err == nil:
		_, err = nodes.Update(ctx, self, was.Revision)
	}
	if err == nil {
		a.told = self
	}
	return err
}

// behind says whether the store does not have this host, or as it was before it
// was told last. Two hosts with one id must not both find so for ever.
func (w *world) behind(told *store.Node) bool {
	n, there := w.node(told.ID)
	return !there || n.Seen.Before(told.Seen)
}

func sameNode(a, b store.Node) bool {
	return a.ID == b.ID && a.Name == b.Name && slices.Equal(a.Underlay, b.Underlay) && a.VTEP == b.VTEP && a.Port == b.Port && a.Lasting == b.Lasting
}

// ensureLease begins a new lease when there is none, or it was lost: then all
// that hung on it is gone, and is put again.
func (a *Agent) ensureLease(ctx context.Context) error {
	if a.lease != nil && (over(a.lease) || over(a.long)) {
		a.opts.Log("store: the lease of this host was lost: beginning another one")
		a.endLease()
		a.lease = nil
	}
	if a.lease == nil {
		if err := a.begin(ctx); err != nil {
			return err
		}
		a.run, a.published, a.checked = random(3), map[string]store.Item[store.Endpoint]{}, time.Time{}
	}
	e := store.Endpoint{Network: lasting, Node: a.self.ID, ID: "host." + a.run}
	if _, there := a.published[e.Key()]; there {
		return nil
	}
	return a.put(ctx, e.Key(), e) // before there is a block that it keeps
}

func over(l store.Lease) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// begin is Lease twice with a limit: its context is the leases', and must not end
// with the call, but with them.
func (a *Agent) begin(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	limit := time.AfterFunc(callTime, cancel)
	lease, err := a.opts.Store.Lease(ctx, a.opts.TTL)
	var long store.Lease
	if err == nil {
		long, err = a.opts.Store.Lease(ctx, longTTL(a.opts.Reclaim))
	}
	if err == nil && !limit.Stop() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	a.lease, a.long, a.endLease = lease, long, cancel
	return nil
}

// longTTL is so long that what is left of it after reclaim begins is reclaim: a lease
// is renewed when three eighths of it are over at last.
func longTTL(reclaim time.Duration) time.Duration {
	const ttl, left = 8, 5
	return reclaim * ttl / left
}

// leave gives back the blocks of networks that are no more. The store is asked
// once more: one that cannot be read is there.
func (a *Agent) leave(ctx context.Context, w *world) error {
	gone := func(network string) bool {
		return !slices.ContainsFunc(w.Networks, func(n store.Network) bool { return n.Name == network })
	}
	var errs []error
	for _, b := range w.Blocks {
		if b.Node != a.self.ID || !gone(b.Network) {
			continue
		}
		if _, err := a.opts.Store.Networks().Get(ctx, b.Network); !errors.Is(err, store.ErrNotFound) {
			if !errors.Is(err, store.ErrUnreadable) {
				errs = append(errs, err)
			}
			continue
		}
		a.opts.Log("network %s is no more: giving back block %s", b.Network, b.Prefix)
		errs = append(errs, a.dropBlock(ctx, b))
	}
	for network := range w.Own {
		if !gone(network) {
			continue
		}
		// Whoever removed it by mistake creates it again, and gets what it was.
		free, err := a.free(network, w.Own[network]...)
		if free {
			a.mirror.remember(network, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
