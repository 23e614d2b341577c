// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	served "github.com/patchbay-net/patchbay/daemons/internal/drops"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// NetworkPolicy are the choices for network policies.
type NetworkPolicy struct {
	Off             bool // policies are not enforced; what an earlier run made of them is removed
	KeepConnections bool // a change of policies ends no connection that was allowed before
	UnknownOpen     bool // as long as the policies were never known on this node, new pods are open and not isolated
	OwnNamespace    bool // by default pods receive packets of other pods only from their own namespace

	LogGroup uint16 // of NFLOG, to which denied packets are sent; 0: to none

	DropsGroup    uint16       // of NFLOG, to which the kernel tells this agent dropped packets; 0: it does not
	DropsListener net.Listener // where clients ask for them; nil: nowhere
}

// logRate is how many packets of a rule are logged in a second.
const logRate = 10

func (c NetworkPolicy) enforcement() enforce.Options {
	o := enforce.Options{KeepConnections: c.KeepConnections, CutLater: true, Tell: c.DropsGroup}
	if c.LogGroup != 0 {
		o.Log = &enforce.Log{Group: c.LogGroup, PerSecond: logRate}
	}
	return o
}

// collect says how changes are collected: a policy should be in force 200 ms after its change, also
// while others change.
var collect = burst.Wait{Shortest: 20 * time.Millisecond, Longest: 80 * time.Millisecond, Rest: 1, Credit: 500 * time.Millisecond}

// cutEvery is the shortest time between two reads of the connections that policies deny now: a busy node has
// hundreds of thousands of connections. The policies themselves do not wait.
const cutEvery = time.Second

// networkPolicy keeps network policies in force on this node: it follows the API's objects, and writes
// the mirror for ADDs and the kernel's rules.
type networkPolicy struct {
	choices NetworkPolicy
	paths   paths.Paths
	cluster *policies.Cluster
	status  *policyStatus
	changed func()        // called when the mirror was first written
	started time.Time     // when the agent did
	absent  time.Duration // between two looks for a kind that the API server lacks
	ready   atomic.Bool   // the mirror has been written
	writing sync.Mutex    // the mirror is being written
	uncut   chan struct{} // signals that connections may have to end
	busy    busy

	sync           func(paths.Paths, []string) error            // of the mirror
	cutConnections func(*enforce.Cut, func(*enforce.Cut)) error // ends connections in the kernel's table
	dropped        atomic.Pointer[[]enforce.Drop]               // the last numbers of packets that policies denied
	patience       time.Duration                                // with policies that are not known, before the first pods
	witness        *witness
	told           *served.Service // nil: dropped packets are not told
	named          bool            // flows need the names of pods

	// Only the goroutine of Follow uses these fields.
	owners   addrOwners
	records  error // of the last read
	programs policy.Sequence

	mu       sync.Mutex // for the fields below
	fw       *nft.Conn
	enforcer *enforce.Enforcer
	compare  bool // the next program reads what the kernel has
	restored pace
	began    bool            // a program was loaded
	inForce  func()          // gives up the lock on policymirror.InForce; nil before the first program
	loaded   *policy.Program // in force; nil: not known
	opened   map[netip.Addr]owner.Key
}

func newNetworkPolicy(o *Options, s *policyStatus) *networkPolicy {
	n := &networkPolicy{
		choices: o.NetworkPolicy, paths: o.Paths, cluster: policies.New(o.Node), status: s,
		started: time.Now(), sync: policymirror.Sync, patience: firstWait, absent: reconcileEvery, changed: func() {}, uncut: make(chan struct{}, 1),
		cutConnections: (*enforce.Cut).Do, witness: newWitness(),
	}
	n.told, n.named = n.service(), o.Flows.Group != 0
	if n.choices.OwnNamespace {
		n.cluster.DefaultOwnNamespace()
	}
	s.cluster, s.follows.losses = n.cluster, n.cluster.Losses
	return n
}

// run works until ctx ends. The policies stay in force then.
func (n *networkPolicy) run(ctx context.Context, a *Agent) {
	if n.choices.Off {
		n.remove(ctx)
		return
	}
	defer n.open()()
	n.status.follows.start(ctx, a.opts.Node, &a.api, n.absent, policyWatches(n.cluster))
	var wg sync.WaitGroup
	wg.Go(func() { n.watchKernel(ctx, a) })
	wg.Go(func() {
		resident.Keep(ctx, func(err error) { a.trouble.set(recordsUnwatched, err) }, func() error {
			return watchAttachments(ctx, n.paths, n.cluster.Wake)
		})
	})
	wg.Go(func() { n.tick(ctx) })
	if n.told != nil {
		wg.Go(func() { n.told.Run(ctx) })
	}
	wg.Go(func() { n.endConnections(ctx, a) })
	n.cluster.Follow(ctx, collect, n.attach, func(s *policy.State) error { return n.program(ctx, s) })
	wg.Wait()
	if err := n.cut(); err != nil { // what the last program denies: the next agent may come minutes later
		a.opts.Log("%v", uncutBy(err))
	}
	if n.inForce != nil {
		n.inForce()
	}
}

// open opens the kernel. The function that it returns closes it.
func (n *networkPolicy) open() (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fw = nft.Open(n.paths.Run)
	opts := n.choices.enforcement()
	opts.Committed = func(took time.Duration) { n.status.transaction.Observe(took.Seconds()) }
	opts.Untold = func(err error) { n.status.trouble.set(dropsRefused, untold(err)) }
	n.enforcer = enforce.New(n.fw, opts)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.fw.Close()     //nolint:errcheck // committed
		n.enforcer = nil // no more drops
	}
}

// remove removes what enforces policies until ctx ends: an ADD may have read the mirror before it went.
func (n *networkPolicy) remove(ctx context.Context) {
	for ctx.Err() == nil {
		n.status.failed(clearPolicies(ctx, n.paths))
		clock.Sleep(ctx, reconcileEvery)
	}
}

// sees returns the copies of a kind that something else in the agent follows, too, or none.
func (n *networkPolicy) sees(k policies.Kind) []copies {
	if n.choices.Off {
		return nil
	}
	return []copies{policyKind(n.cluster, k)}
}

// asked stores the result of a request for such objects.
func (n *networkPolicy) asked(k policies.Kind, err error) {
	for _, c := range n.sees(k) {
		n.status.follows.asked(c, err)
	}
}

// attach reads which addresses this node and its pods have. If that fails, the former addresses stay: without them,
// pods that the API does not show yet would be open.
func (n *networkPolicy) attach() {
	list, owners, ok, err := attachments(n.paths.Run)
	if ok {
		n.owners = owners
		n.witness.attach(owners.pods)
		n.cluster.Attach(list)
	}
	_, localErr := n.moved()
	n.records = errors.Join(err, localErr)
}

// moved reads the addresses of this node, and reports whether they have changed.
func (n *networkPolicy) moved() (bool, error) {
	list, err := enforce.NodeReach()
	if err != nil {
		return false, err
	}
	return n.cluster.Local(list), nil
}

// program puts a state in force. It writes the mirror first, so that an ADD after the change of the
// kernel does not decide by the old state.
func (n *networkPolicy) program(ctx context.Context, s *policy.State) error {
	began := time.Now()
	defer n.busy.begin(began)()
	d := n.programs.Decider(s)
	n.writing.Lock()
	files, mirrored := policymirror.Put(n.paths, d)
	n.writing.Unlock()
	if mirrored == nil && n.ready.CompareAndSwap(false, true) {
		n.changed()
	}
	if n.told != nil || n.named { // a witness keeps the state and some programs
		n.witness.expect(s, d.Program)
	}
	loaded := n.load(ctx, d.Program)
	mirrored = errors.Join(mirrored, n.sync(n.paths, files)) // the kernel does not wait for a disk that hangs
	if ctx.Err() != nil {
		return nil
	}
	if loaded == nil {
		loaded = n.hold(ctx)
	}
	limitMemory()
	n.status.made(d.Program, time.Since(began), mirrored, loaded, n.records)
	return errors.Join(mirrored, loaded)
}

// hangs returns an error if a program hangs.
func (n *networkPolicy) hangs() error { return n.busy.hangs("network policies") }

// hold tells ADDs that a program is in force.
func (n *networkPolicy) hold(ctx context.Context) (err error) {
	if n.inForce == nil {
		n.inForce, err = policymirror.Hold(ctx, n.paths)
	}
	return err
}

// load puts a program in force in the kernel.
func (n *networkPolicy) load(ctx context.Context, p *policy.Program) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.compare {
		n.enforcer.Forget()
	}
	n.enforcer.Attach(n.owners.closures)
	err := n.enforcer.Load(ctx, p, n.owners.addrs)
	if n.loaded = nil; err == nil {
		n.compare, n.began, n.loaded, n.opened = false, true, p, n.owners.addrs
		if n.told != nil || n.named {
			n.witness.replace(p)
		}
		resident.Signal(n.uncut)
	}
	return err
}

// release opens pods that an ADD has closed. The last program has such a pod if the agent had read its record
// before the ADD closed it. Pods that the last program lacks are opened with the next one.
func (n *networkPolicy) release(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.loaded == nil || n.compare {
		return
	}
	if err := n.enforcer.Load(ctx, n.loaded, n.opened); err != nil {
		n.loaded = nil
		n.cluster.Wake()
	}
}

// watchKernel puts policies back that another program changed, until ctx ends.
func (n *networkPolicy) watchKernel(ctx context.Context, a *Agent) {
	resident.Keep(ctx, func(err error) { a.trouble.set(policiesUnwatched, err) }, func() error {
		return nft.WatchPolicies(ctx, func() { n.restore(ctx) }, func(how nft.Touch) { n.touched(ctx, how) })
	})
}

// settles is how long after the removal of elements of sources the next program restores those of the attachments that still
// have records. A DEL that takes longer gets its elements back, and gc removes them.
const settles = 500 * time.Millisecond

// touched handles a transaction that changed policies in the kernel. Most are this agent's own.
func (n *networkPolicy) touched(ctx context.Context, how nft.Touch) {
	switch how {
	case nft.TouchClosed:
		n.release(ctx)
		return
	case nft.TouchSources: // most are a DEL's, whose record goes after its elements
		time.AfterFunc(settles, n.cluster.Wake)
		return
	case nft.TouchRevision:
		n.mu.Lock()
		err := n.enforcer.Check()
		n.mu.Unlock()
		if !errors.Is(err, enforce.ErrChanged) {
			return
		}
	}
	if how != nft.TouchMissed {
		n.status.touched()
	}
	n.restore(ctx)
}

// restore makes the next program compare everything, and asks for it. Before the first program, as
// long as the API server does not answer, it closes pods by the mirror.
func (n *networkPolicy) restore(ctx context.Context) {
	n.mu.Lock()
	n.compare = true
	if !n.began {
		n.status.failed(reclose(ctx, n.paths, n.fw))
	}
	pause := n.restored.next()
	n.mu.Unlock()
	clock.Sleep(ctx, pause)
	n.cluster.Wake()
}

// tick compares everything now and then, until ctx ends.
func (n *networkPolicy) tick(ctx context.Context) {
	regularly(ctx, func() {
		n.status.tell()
		n.status.bypassed()
		if moved, _ := n.moved(); moved { // the next program tells an error
			n.cluster.Wake()
		}
	}, func() { n.restore(ctx) })
}

// drops returns how many packets each policy denied. While a program is put in force, drops returns the former
// numbers. Another process may keep the program waiting for long, and the metrics, which tell that, must not wait,
// too.
func (n *networkPolicy) drops() ([]enforce.Drop, error) {
	if !n.mu.TryLock() {
		if last := n.dropped.Load(); last != nil {
			return *last, nil
		}
		return nil, nil
	}
	defer n.mu.Unlock()
	if n.enforcer == nil {
		return nil, nil
	}
	list, err := n.enforcer.Drops()
	if err == nil {
		n.dropped.Store(&list)
	}
	return list, err
}
