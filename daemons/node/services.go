// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	policyenforce "github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/resident"
	svc "github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/enforce"
)

// Services are the choices for Services.
type Services struct {
	On bool // Services are served; otherwise what an earlier run made of them is removed
	svc.Options
	Healthz string // ADDRESS:PORT of /healthz and /livez, as kube-proxy has them; "": they are not served
}

const (
	// settleAfter is when memories of clients with affinity are judged once more after a change.
	settleAfter = time.Second

	// addressesEvery is the shortest time between two looks for this node's addresses: each new pod changes some.
	addressesEvery = time.Second
)

// serviceProxy keeps Services in force on this node: it follows the API's objects, and writes the kernel's table.
type serviceProxy struct {
	choices  Services
	balanced bool // Services get addresses of load balancers, too
	paths    paths.Paths
	cluster  *services.Cluster
	status   *serviceStatus
	checks   *healthChecks
	changed  func()        // called when Services are first in force
	started  time.Time     // when the agent did
	absent   time.Duration // between two looks for a kind that the API server lacks
	busy     busy
	inForce  atomic.Bool
	foreign  atomic.Bool // another program may have changed the table
	amnesia  atomic.Bool // the last recall failed

	moved    chan struct{} // addresses may have changed
	stirred  chan struct{} // the kernel's table has changed
	unsaved  chan struct{} // the cache's file may be old
	unjudged chan struct{} // memories of clients may have to go

	file [32]byte // SHA-256 of the cache's file; only one goroutine uses it at a time

	mu       sync.Mutex // for the fields below
	fw       *nft.Conn
	enforcer *enforce.Enforcer
	program  *svc.Program // nil before the first one
	listed   bool         // the program has the API server's lists
	restored pace
}

func newServiceProxy(o *Options, s *serviceStatus) *serviceProxy {
	p := &serviceProxy{
		choices: o.Services, balanced: o.LoadBalancers.On, paths: o.Paths, cluster: services.New(o.Node, o.Services.Options), status: s,
		started: time.Now(), absent: reconcileEvery, changed: func() {},
		moved: make(chan struct{}, 1), stirred: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), unjudged: make(chan struct{}, 1),
	}
	p.checks = newHealthChecks(p.healthy, s.unchecked)
	s.cluster, s.follows.losses = p.cluster, p.cluster.Losses
	return p
}

// sees returns the copies of a kind that something else in the agent follows, too, or none.
func (p *serviceProxy) sees(k services.Kind) []copies {
	if !p.choices.On {
		return nil
	}
	return []copies{serviceKind(p.cluster, k)}
}

// asked stores the result of a request for such objects.
func (p *serviceProxy) asked(k services.Kind, err error) {
	for _, c := range p.sees(k) {
		p.status.follows.asked(c, err)
	}
}

// hangs returns an error if a program hangs.
func (p *serviceProxy) hangs() error { return p.busy.hangs("Services") }

// run works until ctx ends. The Services stay in force then.
func (p *serviceProxy) run(ctx context.Context, a *Agent) {
	if !p.choices.On {
		p.remove(ctx)
		return
	}
	defer p.open()()
	p.readAddresses() //nolint:errcheck // follow looks again
	p.recall(ctx)     //nolint:errcheck // follow tries again
	p.status.follows.start(ctx, a.opts.Node, &a.api, p.absent, serviceWatches(p.cluster, p.balanced))
	keep := func(reason func(error), fn func() error) func() { return func() { resident.Keep(ctx, reason, fn) } }
	var wg sync.WaitGroup
	wg.Go(keep(p.status.unwatched, func() error { return nft.WatchServices(ctx, func() { p.touched(nft.TouchMissed) }, p.touched) }))
	wg.Go(keep(p.status.addressesUnwatched, func() error { return watchAddresses(ctx, p.moved) }))
	wg.Go(func() { p.answer(ctx) })
	wg.Go(func() { eachOnce(ctx, p.moved, addressesEvery, func() error { return p.follow(ctx) }) })
	wg.Go(func() { eachOnce(ctx, p.unjudged, 0, func() error { return p.settle(ctx) }) })
	wg.Go(func() { eachOnce(ctx, p.unsaved, saveEvery, p.save) })
	wg.Go(func() {
		regularly(ctx, func() { p.status.tell(); resident.Signal(p.moved) }, func() { p.touched(nft.TouchMissed) })
	})
	wg.Go(func() { p.serveHealthz(ctx, &a.mirror) })
	p.cluster.Follow(ctx, collect, func() {}, func(s *svc.State, c services.Changed) error { return p.apply(ctx, s, c) })
	wg.Wait()
	p.checks.wait()
	p.saveLast()
}

// open opens the connection to the kernel, and returns what closes it.
func (p *serviceProxy) open() (closed func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fw = nft.Open(p.paths.Run)
	p.enforcer = enforce.New(p.fw, enforce.Options{Committed: func(took time.Duration) { p.status.transaction.Observe(took.Seconds()) }})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fw.Close() //nolint:errcheck // committed
	}
}

// remove removes what an earlier run made.
func (p *serviceProxy) remove(ctx context.Context) {
	for ctx.Err() == nil {
		err := ClearServices(ctx, p.paths)
		if p.status.failed(err); err == nil {
			return
		}
		clock.Sleep(ctx, reconcileEvery)
	}
}

// ClearServices removes everything that serves Services on this node. Connections that were translated go on.
func ClearServices(ctx context.Context, p paths.Paths) error {
	fw := nft.Open(p.Run)
	defer fw.Close() //nolint:errcheck // committed
	if err := enforce.New(fw, enforce.Options{}).Remove(ctx); err != nil {
		return fmt.Errorf("remove Services: %w", err)
	}
	return removeServiceCache(p)
}

// readAddresses reads which addresses this node has, and reports whether they have changed. If that fails, the former ones stay.
func (p *serviceProxy) readAddresses() (changed bool, err error) {
	own, _, err := policyenforce.NodeAddresses()
	if p.status.unseen(err); err == nil {
		changed = p.cluster.SetAddresses(own)
	}
	return changed, err
}

// follow looks at the addresses of this node. Cluster.Follow puts them in force, but before the first lists it does nothing.
func (p *serviceProxy) follow(ctx context.Context) error {
	changed, err := p.readAddresses()
	if changed || p.amnesia.Load() {
		err = errors.Join(err, p.recall(ctx))
	}
	return err
}

// apply puts a state in force.
func (p *serviceProxy) apply(ctx context.Context, s *svc.State, c services.Changed) error {
	began := time.Now()
	err := p.load(ctx, s, c)
	if ctx.Err() != nil {
		return nil
	}
	limitMemory()
	p.status.made(time.Since(began), err)
	if err == nil {
		p.status.programmed(c.Triggers)
		resident.Signal(p.unsaved)
		p.works(ctx, p.program)
	}
	return err
}

// works does what follows each program in force. No other goroutine may change the program.
func (p *serviceProxy) works(ctx context.Context, program *svc.Program) {
	resident.Signal(p.unjudged)
	checks, addrs := program.Health(), program.NodePortAddresses()
	p.checks.set(ctx, checks, addrs)
	if p.inForce.CompareAndSwap(false, true) {
		p.changed()
	}
}

// load puts a state in force in the kernel. The first program keeps the slots that endpoints have in the kernel.
func (p *serviceProxy) load(ctx context.Context, s *svc.State, c services.Changed) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.busy.begin(time.Now())()
	switch old := p.program; {
	case old == nil:
		err = p.first(ctx, s)
	case c.All || !p.listed:
		p.program = svc.Compile(s, old)
		err = p.enforcer.Apply(ctx, p.program, svc.Diff(old, p.program))
	default:
		err = p.enforcer.Apply(ctx, old, old.Update(s, c.Names...))
	}
	p.listed = true
	return err
}

func (p *serviceProxy) first(ctx context.Context, s *svc.State) error {
	program, err := p.enforcer.Compile(s)
	if err != nil {
		return err
	}
	p.program = program
	return p.enforcer.Load(ctx, program)
}

// recall puts the Services of the cache in force, unless the API server has listed the objects. If the kernel still has those of
// the last run, which are not older, it only answers load balancers by the cache.
func (p *serviceProxy) recall(ctx context.Context) error {
	program, err := p.recalled(ctx)
	switch p.amnesia.Store(err != nil); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		p.status.failed(err)
		resident.Signal(p.moved) // follow tries again
	case program != nil:
		p.status.failed(nil)
		p.works(ctx, program)
	}
	return err
}

// recalled returns the program of the cache, or nil if it is not needed.
func (p *serviceProxy) recalled(ctx context.Context) (*svc.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.cluster.Cached()
	if p.listed || !known {
		return nil, nil
	}
	defer p.busy.begin(time.Now())()
	if old := p.program; old != nil {
		p.program = svc.Compile(&s, old)
		return p.program, p.enforcer.Apply(ctx, p.program, svc.Diff(old, p.program))
	}
	now, err := p.fw.ReadServicesRevision()
	switch {
	case err != nil:
		return nil, err
	case now.Exists:
		return svc.Compile(&s, nil), nil
	}
	err = p.first(ctx, &s)
	return p.program, err
}

// touched handles a transaction that changed the table. Most are this agent's own. It must not wait: events come faster than a
// large program is put in force.
func (p *serviceProxy) touched(how nft.Touch) {
	if how != nft.TouchRevision {
		p.foreign.Store(true)
	}
	if how == nft.TouchForeign {
		p.status.touched()
	}
	resident.Signal(p.stirred)
}

// answer puts Services back that another program changed, until ctx ends.
func (p *serviceProxy) answer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.stirred:
		}
		if p.differs() {
			p.restore(ctx)
		}
	}
}

// differs reports whether the kernel may have something else than the program.
func (p *serviceProxy) differs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.foreign.Swap(false) {
		return true
	}
	if !errors.Is(p.enforcer.Check(), enforce.ErrChanged) {
		return false
	}
	p.status.touched()
	return true
}

// restore compares everything with the kernel. Before the first program it recalls the cache.
func (p *serviceProxy) restore(ctx context.Context) {
	p.mu.Lock()
	pause := p.restored.next()
	p.mu.Unlock()
	if !clock.Sleep(ctx, pause) {
		return
	}
	if err := p.reload(ctx); err != nil && ctx.Err() == nil {
		p.status.failed(err)
		p.cluster.Wake() // Follow tries again, with pauses
	}
	limitMemory()
}

func (p *serviceProxy) reload(ctx context.Context) error {
	p.mu.Lock()
	program := p.program
	if program == nil {
		p.mu.Unlock()
		return p.recall(ctx)
	}
	defer p.mu.Unlock()
	defer p.busy.begin(time.Now())()
	p.enforcer.Forget()
	return p.enforcer.Load(ctx, program)
}

// settle judges memories of clients once more, a moment after a change.
func (p *serviceProxy) settle(ctx context.Context) error {
	if !clock.Sleep(ctx, settleAfter) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.enforcer.Settle(ctx)
	p.status.unsettled(err)
	return err
}

// servicesPatience is how long the first pods of a node wait for Services: without them they find no resolver.
const servicesPatience = firstWait

var errServicesUnknown = errors.New("the Services are not known yet: the first pods of this node wait for them, but no longer than 10 s")

// admit returns why the first pods of this node cannot start yet. They do not wait for ever. If there may be pods already, nothing waits.
func (p *serviceProxy) admit(first bool) error {
	if !p.choices.On || !first || p.inForce.Load() || time.Since(p.started) > servicesPatience {
		return nil
	}
	return errServicesUnknown
}
