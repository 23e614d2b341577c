// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/hosts/names"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/internal/statedir"
	"github.com/patchbay-net/patchbay/store"
)

// Options are an agent's.
type Options struct {
	Store    store.Store
	Name     string       // what people call this host
	Underlay []netip.Addr // where other hosts reach it; none: the uplink's addresses
	Port     uint16       // UDP, of the tunnel
	Paths    paths.Paths  // State has the agent's own directory and the driver's, CNI host-local's
	ConfDir  string       // of CNI configurations, such as /etc/cni/net.d
	DataRoot string       // Docker's, such as /var/lib/docker
	TTL      time.Duration
	Reclaim  time.Duration // how long a host must be gone before its block may be taken: LeastReclaim
	DNS      []string      // networks whose containers get our resolver; "*" is all
	Domain   string        // of names, beside NAME.NETWORK; "" is none
	// Upstreams are asked for all other names; none: those of the host's resolv.conf.
	Upstreams []netip.AddrPort
	Fabric    Fabric
	Log       func(format string, args ...any)
}

// Fabric carries packets between the hosts: *mesh.Mesh.
type Fabric interface {
	Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error
	UplinkMTU(underlay []netip.Addr) (int, error)
	// Watch calls changed when Apply has to be called again, until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// Agent is one host's.
type Agent struct {
	opts Options
	self *identity
	dir  string // below Paths.State
	wall func() time.Time

	links opener // those of bridges

	mirror mirror
	said   said
	view   view
	names  names.Server

	local    chan struct{} // something is new for this host
	kernel   chan struct{} // the kernel is not what it was
	upstream chan struct{} // something is new for the store

	mu         sync.Mutex
	docker     docker
	containers []container
	copies     []dockerCopy
	unread     string // what could not be read: there may be more of them

	// tendStore's
	told      store.Node // what the store was told of this host
	lease     store.Lease
	long      store.Lease                           // see lasting
	endLease  context.CancelFunc                    // of the leases' context
	run       string                                // names the lease
	published map[string]store.Item[store.Endpoint] // what hangs on it, by key
	others    map[string]time.Time                  // leases with what is this host's, since when
	twinSeen  time.Time                             // when another host had this one's id
	checked   time.Time                             // when published was compared with the store

	// tendHost's
	meshed  meshed
	saved   saved
	reached []netip.Addr // where others reach this host, when it was looked at last
	lost    bool         // there was no way to the others
}

// New makes an agent. It reads who this host is and what it last knew.
func New(opts Options) (*Agent, error) {
	if opts.TTL < time.Second || opts.Reclaim <= 0 {
		return nil, errors.New("the ttl must be a second at least, and the time to reclaim more than 0")
	}
	if err := statedir.Make(opts.Paths.State, "hosts"); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	a := &Agent{
		opts: opts, dir: filepath.Join(opts.Paths.State, "hosts"), said: said{log: opts.Log}, wall: time.Now,
		local: make(chan struct{}, 1), kernel: make(chan struct{}, 1), upstream: make(chan struct{}, 1),
		others: map[string]time.Time{},
		docker: docker{state: opts.Paths.State, data: opts.DataRoot},
	}
	a.mirror.changed = a.wake
	a.names.Ports = (&ports{proc: opts.Paths.Proc, tell: a.said.tell}).of
	a.names.View, a.names.Domain, a.names.Upstreams, a.names.Log = &a.view, opts.Domain, opts.Upstreams, opts.Log
	var err error
	if a.self, err = loadIdentity(a.dir); err != nil {
		return nil, err
	}
	a.mirror.self, a.mirror.doubt = a.self.ID, opts.Reclaim
	a.said.tell("cache", a.mirror.load(a.dir))
	a.mirror.tables = tablesOf(&a.mirror.cache) // for what cannot be read
	return a, nil
}

// ID is the host's.
func (a *Agent) ID() string { return a.self.ID }

// How often everything is looked at, whether or not anything happened.
const (
	reconcileEvery = time.Minute
	wayEvery       = 3 * time.Second // while there is none to the others
	dockerEvery    = 500 * time.Millisecond
	settleTime     = 20 * time.Millisecond // many changes come together
	restFactor     = 4                     // times as long as work took, before the next
	settleMost     = 5 * time.Second       // a store that is slow is no work of ours
)

// Run works until ctx ends, and leaves no call of the store behind. What was made
// stays: the containers are there, too.
func (a *Agent) Run(ctx context.Context) {
	a.readDocker()
	defer a.names.Close()
	var wg sync.WaitGroup
	wg.Go(func() { a.mirror.follow(ctx, a.opts.Store, a.said.tell) })
	wg.Go(func() { a.watchDocker(ctx) })
	wg.Go(func() { a.tendStore(ctx) })
	wg.Go(func() { a.tendHost(ctx) })
	wg.Go(func() {
		keep(ctx, func(err error) { a.said.tell("watch the kernel", err) }, func() error {
			return a.opts.Fabric.Watch(ctx, func() { ring(a.kernel) })
		})
	})
	wg.Wait()
}

// wake has both loops look.
func (a *Agent) wake() {
	ring(a.local)
	ring(a.upstream)
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it will look anyhow
	}
}

// tendHost keeps the kernel and the files of this host as the world says. It
// never waits for the store.
func (a *Agent) tendHost(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for all := true; ; {
		began := time.Now()
		a.apply(ctx, all)
		took := time.Since(began)
		var way <-chan time.Time
		if a.lost { // an address that is only being made ready is told by nobody
			way = time.After(jitter(wayEvery))
		}
		select {
		case <-way:
			all = true
		case <-ctx.Done():
			if w, _, synced := a.mirror.snapshot(); synced {
				a.said.tell("cache", a.save(&w, true))
			}
			return
		case <-tick.C:
			all = true
		case <-a.kernel:
			all = true
			sleep.For(ctx, settle(took))
		case <-a.local:
			all = false
			sleep.For(ctx, settle(took))
		}
	}
}

// settle is how long to let changes come together: the more there is to look at,
// the longer, so that looking never takes a whole processor. Nobody hears anything
// meanwhile, not even that the lease is lost, so there is a most.
func settle(took time.Duration) time.Duration {
	return min(max(settleTime, restFactor*took), settleMost)
}

// watchDocker looks at the files of the driver and of dockerd. Nobody tells us,
// so that nobody waits for us.
func (a *Agent) watchDocker(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if a.readDocker() {
			a.wake()
		}
		sleep.For(ctx, max(dockerEvery, settle(time.Since(began))))
	}
}

func (a *Agent) readDocker() (changed bool) {
	containers, copies, err := a.docker.read()
	a.said.tell("docker", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	unread := ""
	if err != nil {
		unread = err.Error()
	}
	changed = unread != a.unread || !reflect.DeepEqual(containers, a.containers) || !reflect.DeepEqual(copies, a.copies)
	a.containers, a.copies, a.unread = containers, copies, unread
	return changed
}

// known are the endpoints of this host's containers, and whether these are all.
func (a *Agent) known() (containers []container, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.containers, a.unread == ""
}

// here are the endpoints of this host's containers, and Docker's networks.
func (a *Agent) here() ([]container, []dockerCopy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.containers, a.copies
}
