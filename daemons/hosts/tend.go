// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// tendStore keeps this host's records in the store up to date: its node, session, blocks and
// containers. If the store fails, it tries again.
func (a *Agent) tendStore(ctx context.Context) {
	for ctx.Err() == nil {
		began, before := time.Now(), a.problems.Changes()+a.mirror.changes()
		err := a.tend(ctx)
		took := time.Since(began)
		if ctx.Err() == nil && !errors.Is(err, errNoUplink) {
			a.problems.Set("store", err)
		}
		if a.problems.Changes()+a.mirror.changes() != before {
			resident.Signal(a.local) // so that tendHost updates the kernel, the cache and the status
		}
		pause := reconcileEvery
		if err != nil {
			pause = resident.Jitter(resident.RetryFirst)
		}
		if a.await(ctx, pause); err == nil {
			clock.Sleep(ctx, resident.Settle(took))
		}
	}
}

// errNoUplink is reported as the problem "uplink". It is no failure of the store.
var errNoUplink = errors.New("no uplink")

// await waits until there may be something to do.
func (a *Agent) await(ctx context.Context, most time.Duration) {
	var lost <-chan struct{}
	if a.session != nil {
		lost = a.session.Lost()
	}
	select {
	case <-ctx.Done():
	case <-lost:
	case <-a.upstream:
	case <-time.After(most):
	}
}

// tend brings all records of this host in the store up to date, once. An error with one network
// does not delay the others.
func (a *Agent) tend(ctx context.Context) error {
	self, err := a.node()
	if a.problems.Set("uplink", err); err != nil {
		return errNoUplink
	}
	w, _, synced := a.mirror.snapshot()
	if !synced {
		return nil // a host that has not read the store has nothing to write yet
	}
	if a.keyUnknown(&w) {
		return nil // a record without the key would cut this host off
	}
	if err := a.ensureSession(ctx); err != nil {
		return fmt.Errorf("begin session: %w", err)
	}
	self.LastingIn = a.lastingIn
	if err := a.putNode(ctx, self, w.behind(&a.written)); err != nil {
		return fmt.Errorf("put node: %w", err)
	}
	networks, _ := a.usable(&w, self.Underlay) // tendHost reports why other networks are not usable
	wrong := map[string]error{}
	for i := range networks {
		wrong[networks[i].Name] = a.claim(ctx, &w, &networks[i])
	}
	a.problems.SetAll("block of", wrong)
	if a.claimed { // now each host notices if the store goes back to before the claim
		if err := a.putNode(ctx, self, false); err != nil {
			return fmt.Errorf("put node: %w", err)
		}
	}
	return errors.Join(a.leave(ctx, &w), a.publish(ctx, &w))
}

// node returns this host's record for the other hosts.
func (a *Agent) node() (store.Node, error) {
	addrs := a.opts.Underlay
	if len(addrs) == 0 {
		var err error
		if addrs, err = uplinkAddrs(a.opts.Paths.Proc); err != nil {
			return store.Node{}, err
		}
	}
	n := store.Node{ID: a.self, Name: a.opts.Name, Underlay: addrs, VTEP: mesh.VTEP(a.self).String(), Port: a.opts.Port, Seen: a.wall().UTC().Round(0)}
	n.WireGuardKey, n.WireGuardPort = a.publicKey()
	return n, nil
}

// seenEvery is how often this host updates the time in its record. When the session has ended,
// this time is still there. The updates are seldom: each goes to all hosts, but only a host that
// reclaims a block needs the time.
func (a *Agent) seenEvery() time.Duration {
	const part = 24
	return min(max(a.opts.Reclaim/part, seenLeast), time.Hour)
}

const seenLeast = time.Minute

// LeastReclaim returns the smallest safe value for Options.Reclaim. A healthy host may lack a
// session for some time. Other hosts then judge it by the time in its record. They must not take
// its block while its containers run.
func LeastReclaim(ttl time.Duration) time.Duration {
	const times = 10
	return times * max(ttl, seenLeast)
}

// putNode writes this host's record if it has changed or if the store has lost it.
func (a *Agent) putNode(ctx context.Context, self store.Node, lost bool) error {
	if !lost && !a.claimed && sameNode(a.written, self) && self.Seen.Sub(a.written.Seen).Abs() < a.seenEvery() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	nodes := a.opts.Store.Nodes()
	was, err := nodes.Get(ctx, self.ID)
	at := was.Revision
	switch {
	case errors.Is(err, store.ErrNotFound):
		at, err = nodes.Create(ctx, self, nil)
	case err == nil && a.older(was.Revision) && !lost:
		return a.rewound(was.Revision)
	case err == nil:
		at, err = nodes.Update(ctx, self, was.Revision)
	}
	if err == nil {
		a.written, a.writtenAt, a.writtenIn, a.claimed = self, at, a.mirror.history(), false
		a.mirror.wrote(self, at)
	}
	return err
}

// behind reports whether the store lacks this host's record, or has an older one than this host
// last wrote. A newer record does not count. Otherwise two hosts with the same id would overwrite
// each other's record for ever.
func (w *world) behind(written *store.Node) bool {
	n, there := w.node(written.ID)
	return !there || n.Seen.Before(written.Seen)
}

func sameNode(a, b store.Node) bool {
	return a.ID == b.ID && a.Name == b.Name && slices.Equal(a.Underlay, b.Underlay) && a.VTEP == b.VTEP && a.Port == b.Port && a.LastingIn == b.LastingIn &&
		a.WireGuardKey == b.WireGuardKey && a.WireGuardPort == b.WireGuardPort
}

// ensureSession begins a new session if there is none or the old one was lost. The endpoints on a
// lost session are gone, and the agent writes them again.
func (a *Agent) ensureSession(ctx context.Context) error {
	if a.session != nil && (over(a.session) || over(a.long)) {
		a.opts.Log("store: the session of this host was lost: beginning another one")
		a.endSession()
		a.session = nil
	}
	if a.session == nil {
		if err := a.begin(ctx); err != nil {
			return err
		}
		a.run, a.published, a.checked = random(3), map[string]store.Item[store.Entry]{}, time.Time{}
	}
	e := store.Entry{Network: lasting, Node: a.self, ID: "host." + a.run}
	history := a.mirror.history() // before the put: if the store loses its data after it, the name differs
	if _, there := a.published[e.Key()]; there && a.lastingIn == history {
		return nil
	}
	err := a.put(ctx, e.Key(), e) // before this host claims a block that the endpoint protects
	if err == nil {
		a.lastingIn = history
	}
	return err
}

func over(l store.Session) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// begin requests both sessions within a time limit. The sessions have one context. It ends with
// the sessions, not when begin returns.
func (a *Agent) begin(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	limit := time.AfterFunc(callTime, cancel)
	session, err := a.opts.Store.Session(ctx, a.opts.TTL)
	var long store.Session
	if err == nil {
		long, err = a.opts.Store.Session(ctx, longTTL(a.opts.Reclaim))
	}
	if err == nil && !limit.Stop() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	a.session, a.long, a.endSession = session, long, cancel
	return nil
}

// longTTL returns a TTL of which at least reclaim is left when a host stops renewing. A host
// renews a session before three eighths of its TTL are over.
func longTTL(reclaim time.Duration) time.Duration {
	const ttl, left = 8, 5
	return reclaim * ttl / left
}

// leave gives back the blocks of removed networks. It also deletes those of hosts that are gone: the command
// that removes a network deletes its blocks afterwards, and may crash before that. A network that could not be
// read is missing from w.Networks too, but its blocks must stay. So giveUp asks the store for the network
// before it drops a block.
func (a *Agent) leave(ctx context.Context, w *world) error {
	gone := func(network string) bool {
		return !slices.ContainsFunc(w.Networks, func(n store.Network) bool { return n.Name == network })
	}
	var errs []error
	for _, b := range w.Blocks {
		if gone(b.Network) && (b.Node == a.self || a.lost(w, b.Node)) {
			errs = append(errs, a.giveUp(ctx, w, b))
		}
	}
	for network := range w.Own {
		if !gone(network) {
			continue
		}
		// A user may remove the network by mistake and create it again. Then each host gets its former
		// block.
		_, err := a.revoke(network, removed(network), w.Own[network], func(netip.Prefix) bool { return true })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lost reports whether, as far as this host knows, a host is gone for so long that another one may take its
// block.
func (a *Agent) lost(w *world, id string) bool {
	on := func(network string) bool {
		return slices.ContainsFunc(w.Endpoints, func(e store.Entry) bool { return e.Network == network && e.Node == id })
	}
	node, _ := w.node(id)
	h := holder{seen: node.Seen, present: on(presence), lasting: lastsIn(&node, a.mirror.history()), lasts: on(lasting)}
	return !a.doubts(w) && a.reclaimable(h)
}

// giveUp deletes a block of a network that does not exist.
func (a *Agent) giveUp(ctx context.Context, w *world, b store.Block) error {
	_, err := a.opts.Store.Networks().Get(ctx, b.Network)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return nil
	case !errors.Is(err, store.ErrNotFound):
		return err
	case b.Node != a.self:
		return a.dropLost(ctx, w, b)
	}
	a.opts.Log("network %s was removed: giving back block %s", b.Network, b.Prefix)
	if err := a.stop(b.Network, removed(b.Network)); err != nil { // before another host can have the block
		return err
	}
	return a.dropBlock(ctx, b)
}

// dropLost deletes a block of a host that is gone as far as this host knows, if the store confirms it.
func (a *Agent) dropLost(ctx context.Context, w *world, b store.Block) error {
	holderOf, err := a.readHolders(ctx, w)
	if err != nil || !a.reclaimable(holderOf(b)) {
		return err
	}
	a.opts.Log("network %s was removed, and the host %s with its block %s is gone: deleting the block", b.Network, b.Node, b.Prefix)
	return a.dropBlock(ctx, b)
}
