// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the agent that makes one CNI network span many hosts
// (docs/hosts.md, docs/adr/0032). On each host it
//
//	claims     a block of addresses of each network in the store
//	renders    a CNI configuration that allocates addresses from the block
//	routes     the other hosts' blocks to them (internal/mesh)
//	publishes  the host's containers and their names in the store
//	answers    DNS queries for the names of all containers (daemons/hosts/names)
//
// The agent only prepares. A plugin that connects a container reads the configuration; it needs
// neither the agent nor the store. While the store is unreachable, the agent works with the state
// that it last read, and removes nothing.
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

	"github.com/patchbay-net/patchbay/daemons/hosts/names"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/fabric"
	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Options configure an Agent.
type Options struct {
	Store    store.Store
	Name     string       // the host's name in listings
	Underlay []netip.Addr // addresses at which other hosts reach this one; empty: the uplink's addresses
	Port     uint16       // UDP port of the tunnel
	WirePort uint16       // UDP port of WireGuard
	Paths    paths.Paths  // State has the directories of the agent and of the Docker driver; CNI has those of host-local
	ConfDir  string       // directory of CNI configurations, such as /etc/cni/net.d
	DataRoot string       // Docker's data directory, such as /var/lib/docker
	TTL      time.Duration
	Reclaim  time.Duration // how long a host must be gone before another host may take its block; see LeastReclaim
	DNS      []string      // networks whose containers use our resolver; "*" means all
	Domain   string        // suffix of names, in addition to NAME.NETWORK; "" means none
	// Upstreams are DNS servers that answer all other names. If there are none, the servers in the
	// host's resolv.conf answer them.
	Upstreams []netip.AddrPort
	Fabric    Fabric
	Log       func(format string, args ...any)
}

// Fabric carries packets between the hosts. *mesh.Mesh implements it.
type Fabric interface {
	fabric.Mesh
	// Encrypt returns this host's public key for WireGuard, and makes the key at the first call.
	Encrypt(ctx context.Context) (mesh.Key, error)
}

// Agent is the agent of one host.
type Agent struct {
	opts  Options
	self  string // this host's id
	dir   string // the agent's directory, below Paths.State
	wall  func() time.Time
	began time.Time

	links opener // opens the links of bridges

	mirror   mirror
	problems resident.Problems
	health   *health.Health
	view     view
	names    names.Server

	granting sync.Mutex     // locked while a grant and the agent's memory of its blocks change
	stopped  map[string]int // how often this host stopped giving out addresses of blocks, by network; guarded by granting

	local    chan struct{} // wakes tendHost
	kernel   chan struct{} // wakes tendHost after a change in the kernel
	upstream chan struct{} // wakes tendStore

	mu         sync.Mutex
	docker     docker
	containers []container
	copies     []dockerCopy
	encryption encryption
	unread     string // the last read error; while there is one, containers or copies may be incomplete

	// Only tendStore uses the following fields.
	written       store.Node     // this host's record as the agent last wrote it to the store
	writtenAt     store.Revision // at which it did
	writtenIn     string         // the history that the mirror followed then
	claimed       bool           // a block was claimed, and the record not written since
	session       store.Session
	long          store.Session                      // the session of the endpoint in the network _lasting
	lastingIn     string                             // the history of the store in which this agent put that endpoint
	endSession    context.CancelFunc                 // ends the context of both sessions
	run           string                             // how the ids of the endpoints on this session end
	published     map[string]store.Item[store.Entry] // the endpoints that the store has on this session, by key
	others        map[string]time.Time               // for each other session, by its suffix, when an agent with this host's id was first seen on it
	duplicateSeen time.Time                          // when another host with this host's id was last seen
	checked       time.Time                          // when published was last compared with the store

	// Only tendHost uses the following fields.
	fabric   fabric.Carrier
	saved    saved
	reached  []netip.Addr // this host's underlay addresses when they were last read
	noUplink bool         // the last search found no uplink
	mute     []netip.Addr // where the resolver could not listen
}

// New makes an agent. It loads the host's identity and the saved state.
func New(opts Options) (*Agent, error) {
	if opts.TTL < time.Second || opts.Reclaim <= 0 {
		return nil, errors.New("the ttl must be at least a second, and the time to reclaim more than 0")
	}
	if err := durable.MakeDir(opts.Paths.State, Service); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	a := &Agent{
		opts: opts, dir: filepath.Join(opts.Paths.State, Service), problems: resident.Problems{Log: opts.Log}, wall: time.Now, began: time.Now(),
		local: make(chan struct{}, 1), kernel: make(chan struct{}, 1), upstream: make(chan struct{}, 1),
		others: map[string]time.Time{},
		docker: docker{state: opts.Paths.State, data: opts.DataRoot},
	}
	a.health = newHealth(a)
	a.fabric = fabric.Carrier{Mesh: opts.Fabric, Applied: a.health.Applied}
	a.mirror.changed = a.wake
	a.names.Ports = (&ports{proc: opts.Paths.Proc, report: a.problems.Set}).of
	a.names.View, a.names.Domain, a.names.Upstreams, a.names.Log = &a.view, opts.Domain, opts.Upstreams, opts.Log
	var err error
	if a.self, err = loadIdentity(a.dir); err != nil {
		return nil, err
	}
	a.mirror.self, a.mirror.doubt, a.mirror.nodes.Newer = a.self, opts.Reclaim, newerNode
	a.problems.Set("cache", a.mirror.load(a.dir))
	return a, nil
}

// ID returns the host's id.
func (a *Agent) ID() string { return a.self }

const (
	reconcileEvery = fabric.ReconcileEvery
	uplinkEvery    = 3 * time.Second // while there is no uplink
	dockerEvery    = 500 * time.Millisecond
)

// Run works until ctx ends. It returns when its calls to the store have ended. It leaves bridges,
// routes and files alone, because containers use them.
func (a *Agent) Run(ctx context.Context) {
	a.readDocker()
	defer a.names.Close()
	var wg sync.WaitGroup
	wg.Go(func() { a.mirror.follow(ctx, a.opts.Store, a.problems.Set) })
	wg.Go(func() { a.watchDocker(ctx) })
	wg.Go(func() { a.tendStore(ctx) })
	wg.Go(func() { a.tendHost(ctx) })
	wg.Go(func() {
		fabric.Follow(ctx, a.opts.Fabric, func() { resident.Signal(a.kernel) },
			func(err error) { a.problems.Set("watch the kernel", err) }, func(err error) { a.problems.Set("probe the paths", err) })
	})
	wg.Wait()
}

// wake makes both loops check everything.
func (a *Agent) wake() {
	resident.Signal(a.local)
	resident.Signal(a.upstream)
}

// tendHost keeps the kernel and the files of this host in the desired state. It never waits for
// the store.
func (a *Agent) tendHost(ctx context.Context) {
	apply := func(ctx context.Context, all bool) (done bool) {
		a.apply(ctx, all)
		return !a.noUplink // the watch does not report that a tentative address became usable
	}
	(&fabric.Loop{Apply: apply, Retry: uplinkEvery, Kernel: a.kernel, World: a.local}).Run(ctx)
	if w, _, synced := a.mirror.snapshot(); synced {
		a.problems.Set("cache", a.save(&w, true))
	}
}

// watchDocker polls the files of the Docker driver and of dockerd. These programs do not notify
// the agent. So they never have to wait for it.
func (a *Agent) watchDocker(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if a.readDocker() {
			a.wake()
		}
		clock.Sleep(ctx, max(dockerEvery, resident.Settle(time.Since(began))))
	}
}

func (a *Agent) readDocker() (changed bool) {
	containers, copies, err := a.docker.read()
	a.problems.Set("docker", err)
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

// localContainers returns the endpoints of this host's containers. If some may be missing, all is false.
func (a *Agent) localContainers() (containers []container, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.containers, a.unread == ""
}

// here returns the endpoints of this host's containers, and the Docker networks.
func (a *Agent) here() ([]container, []dockerCopy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.containers, a.copies
}
