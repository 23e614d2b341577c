// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// actTime is for one request of an act.
const actTime = 2 * time.Second

// Pauses after acts that failed.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Keeper does what the plans of one node say.
type Keeper struct {
	Cluster *Cluster
	Server  Server
	Now     func() time.Duration // a clock that also runs while the machine sleeps
	// Announced is called with the addresses for which this node answers, whenever they change. Owns is true for them before.
	Announced func(map[netip.Addr]bool)
	// Report is called with what came of each round of acts, and Renewed with what came of each renewal.
	Report, Renewed func(error)

	session session
	wanted  atomic.Bool
	want    chan struct{} // wanted has changed
	grant   atomic.Pointer[grant]

	mu    sync.Mutex
	plan  Plan
	taken int // addresses taken from others or nobody
}

// grant are the addresses that a session may announce.
type grant struct {
	session string
	addrs   map[netip.Addr]bool
}

// Owns reports whether this node may answer for an address at this moment.
func (k *Keeper) Owns(a netip.Addr) bool {
	g := k.grant.Load()
	return g != nil && g.addrs[a] && k.session.current() == g.session
}

// Status returns the last plan, and how many addresses this node has taken.
func (k *Keeper) Status() (p Plan, taken int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plan, k.taken
}

// Run works until ctx ends. Then it answers for no address any more, and tells the others.
func (k *Keeper) Run(ctx context.Context) {
	k.session = session{node: k.Cluster.node, server: k.Server, now: k.Now}
	k.want = make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() { k.renew(ctx) })
	k.work(ctx)
	wg.Wait()
	k.publish("", nil)
	k.Renewed(k.session.end(context.WithoutCancel(ctx)))
}

// renew keeps the session as long as it is wanted.
func (k *Keeper) renew(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.want:
		case <-timer.C:
		}
		pause := k.renewOnce(ctx)
		if now := k.session.current(); now != last { // also if it has ended since: the plan must say that nothing is owned
			last = now
			k.Cluster.forget()
			k.Cluster.Wake()
		}
		timer.Reset(pause)
	}
}

// renewOnce renews the session if it is wanted, or ends it, and returns when to do so again.
func (k *Keeper) renewOnce(ctx context.Context) (pause time.Duration) {
	if !k.wanted.Load() {
		if k.session.current() != "" {
			k.Renewed(k.session.end(ctx))
		}
		return time.Hour
	}
	err := k.session.renew(ctx)
	if k.Renewed(err); err != nil {
		return renewRetry
	}
	return renewEvery
}

// work makes plans, and does their acts.
func (k *Keeper) work(ctx context.Context) {
	turns := Turns{}
	var pause, idle time.Duration // after a failure: the pause, and until when it lasts
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.Cluster.changed:
		case <-timer.C:
		}
		w, complete := k.Cluster.world(k.session.current(), k.Now())
		if !complete {
			continue
		}
		var p Plan
		p, turns = Make(&w, turns)
		k.apply(w.Session, p)
		if k.Now() >= idle {
			err := k.do(ctx, p.Acts)
			if ctx.Err() != nil {
				return
			}
			k.Report(err)
			if pause = next(pause, err); pause == 0 && len(p.Acts) > 0 {
				k.Cluster.Wake() // what follows from the acts
			}
			idle = k.Now() + pause
		}
		timer.Reset(wait(k.Now(), p.Next, idle))
	}
}

// next returns the pause after a round. If others were faster, it is short.
func next(pause time.Duration, err error) time.Duration {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrConflict):
		return retryFirst
	}
	return min(max(2*pause, retryFirst), retryMost)
}

// wait returns the time until the next plan if nothing changes.
func wait(now, at, idle time.Duration) time.Duration {
	switch {
	case idle > now && (at == 0 || idle < at):
		return idle - now
	case at == 0:
		return time.Hour
	}
	return max(at-now, 0)
}

// apply makes a plan known: first to those that answer.
func (k *Keeper) apply(session string, p Plan) {
	k.publish(session, p.Announce)
	if k.wanted.Swap(p.Session) != p.Session {
		resident.Signal(k.want)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plan = p
}

func (k *Keeper) publish(session string, addrs map[netip.Addr]bool) {
	old := k.grant.Swap(&grant{session, addrs})
	if old == nil || !maps.Equal(old.addrs, addrs) || session != old.session && len(addrs) > 0 {
		k.Announced(addrs)
	}
}

// do does acts. One that fails because an object was changed meanwhile is for the next plan; after another failure the rest waits, too.
func (k *Keeper) do(ctx context.Context, acts []Act) error {
	var errs []error
	for _, a := range acts {
		err := k.one(ctx, a)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if !errors.Is(err, ErrConflict) {
			break
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) one(ctx context.Context, a Act) (err error) {
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	if a.Verb == Write {
		if err = k.Server.Write(ctx, a.Service, a.Status); err != nil {
			return fmt.Errorf("write the status of the Service %s: %w", a.Service.Name, err)
		}
		k.Cluster.wrote(a.Service, a.Status)
		return nil
	}
	if err = k.confirm(ctx, a.Doubt); err == nil {
		err = k.lease(ctx, a)
	}
	if err != nil {
		return fmt.Errorf("%s the Lease of %s for the Service %s: %w", a.Verb, a.Holding.Addr, a.Holding.Service, err)
	}
	return nil
}

func (k *Keeper) lease(ctx context.Context, a Act) error {
	if a.Verb == Remove {
		err := k.Server.Remove(ctx, a.Holding)
		if err == nil {
			k.Cluster.removed(a.Holding)
		}
		return err
	}
	l, err := k.Server.Put(ctx, a.Holding)
	if err != nil {
		return err
	}
	if k.Cluster.put(l, true); a.Verb != Release {
		k.mu.Lock()
		k.taken++
		k.mu.Unlock()
	}
	return nil
}

// confirm asks the API server whether a session has ended that this node has not seen renewed in time: the renewals may be on their way. If the
// node of the session renews it after the answer, it is too late for the node, too.
func (k *Keeper) confirm(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	now, version, err := k.Server.Session(ctx, NodeOf(id))
	if err != nil {
		return fmt.Errorf("look whether its owner %s renews its Lease: %w", NodeOf(id), err)
	}
	if now == id && k.Cluster.renewed(id, version, k.Now()) {
		return fmt.Errorf("its owner %s has renewed its Lease: %w", NodeOf(id), ErrConflict)
	}
	return nil
}
