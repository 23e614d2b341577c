// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker lets Docker use any CNI network: it is the network driver and the IPAM
// driver of `patchbayd docker` (docs/docker.md, docs/adr/0030).
//
// Docker requests the interface before the container exists, moves it itself, and supports
// only simple routes and no sysctls. So a chain runs in three parts:
//
//	hold   its first plugin, in a holding namespace, at CreateEndpoint; Join puts
//	       the interface where libnetwork takes it from
//	post   the rest, in the container's namespace, after libnetwork moved the
//	       interface and before the container's process starts (Docker 28 and
//	       later; before, in the holding namespace at Join)
//	ports  the plugins that publish ports, when the endpoint gets the default gateway
//
// The driver does not ask for Docker's version: it sees whether the sandbox exists at Join.
//
// No call asks Docker anything, because Docker waits for the call. Each call for an endpoint
// waits for the previous call of that endpoint, and for no other endpoint's.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/spec"
)

// Options of a Driver. Only Plugins is required.
type Options struct {
	Plugins []string // directories of CNI plugins
	ConfDir string   // of network configurations; default /etc/cni/net.d
	Paths   paths.Paths
	Invoker invoke.Invoker // calls the plugins; nil: by exec

	// Limit bounds one call. It must be less than the server's limit, so that a plugin
	// that hangs is killed before Docker gets the answer.
	Limit time.Duration // default 45 s
	// Grace is the least age at which the collector removes unused things.
	Grace    time.Duration // default 5 min
	DataRoot string        // Docker's, to find names of containers; default /var/lib/docker
	Docker   string        // its API, unix:///PATH or tcp://HOST:PORT; empty: Docker is not asked
	Log      func(format string, args ...any)

	engine engine        // asks Docker; for tests
	doubt  time.Duration // for tests: inDoubt
	place  time.Duration // for tests: placeTime

	step func() // called before and after the state is written; for tests that kill
}

// Driver is a cnm.NetworkDriver and a cnm.IPAMDriver. Several goroutines may call its
// methods at once.
type Driver struct {
	opts  Options
	store *state.Store
	boot  string
	locks locks
	run   map[part]*chain.Runtime
}

// Driver also publishes ports.
var (
	_ cnm.NetworkDriver = (*Driver)(nil)
	_ cnm.Connectivity  = (*Driver)(nil)
)

// New opens the state. It changes nothing else: Keep does.
func New(o Options) (*Driver, error) {
	o.Limit, o.Grace, o.DataRoot = cmp.Or(o.Limit, 45*time.Second), cmp.Or(o.Grace, 5*time.Minute), cmp.Or(o.DataRoot, "/var/lib/docker")
	o.doubt, o.place = cmp.Or(o.doubt, inDoubt), cmp.Or(o.place, placeTime)
	o.Invoker = cmp.Or[invoke.Invoker](o.Invoker, execer{})
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.step == nil {
		o.step = func() {}
	}
	if len(o.Plugins) == 0 {
		return nil, errors.New("no directory of CNI plugins")
	}
	if o.Docker != "" {
		asked, err := newEngine(o.Docker)
		if err != nil {
			return nil, err
		}
		o.engine = asked
	}
	store, err := state.Open(o.Paths.State, "docker")
	if err != nil {
		return nil, err
	}
	store.Keep()
	if err := durable.MakeDir(o.Paths.Run, "docker"); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	boot, err := ipam.ReadBoot(o.Paths.Proc)
	if err != nil {
		return nil, err
	}
	d := &Driver{opts: o, store: store, boot: boot.ID, run: map[part]*chain.Runtime{}}
	for _, p := range []part{hold, post, ports, lease} {
		d.run[p] = d.runtime(p)
	}
	d.logOpen()
	return d, nil
}

// runtime keeps the results of each part separate, and apart from libcni's: a runtime
// that runs GC on the same network does not know our endpoints.
func (d *Driver) runtime(p part) *chain.Runtime {
	return &chain.Runtime{
		RollbackTime: rollbackTime,
		NoRollback:   p == lease, // ask does it, and keeps what cannot be undone
		Path:         d.opts.Plugins, ConfDir: d.opts.ConfDir, Invoker: d.opts.Invoker, RunDir: d.opts.Paths.Run,
		CacheDir: filepath.Join(d.store.Dir(), "cache", p.String()),
		Warn:     func(err error) { d.opts.Log("warning: %v", err) },
		Event: func(e chain.Event) {
			d.opts.Log("%s %s %s/%.12s: %s in %v%s", e.Verb, e.Plugin, e.Network, e.ContainerID, e.Outcome(), e.Duration.Round(time.Millisecond), because(e.Err))
		},
	}
}

// execer runs plugins. They may call a Docker driver themselves, so execer passes on the
// depth.
type execer struct{}

// Invoke implements invoke.Invoker.
func (execer) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	e := invoke.Exec{Env: []string{cnm.EnvDepth + "=" + strconv.Itoa(cnm.Depth(ctx)+1)}}
	return e.Invoke(ctx, pluginType, call)
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Down answers for a driver that cannot start.
func Down(why error) *cnm.Handler {
	d := new(Driver) // answers Activate and GetCapabilities; no other method is called
	return &cnm.Handler{
		Network: d, IPAM: d,
		Down: fmt.Errorf("the network driver cannot start (journalctl -u patchbay-docker): %w", why),
	}
}

// save records an endpoint before the work goes on.
func (d *Driver) save(e *state.Endpoint) error {
	e.Changed = time.Now().UTC().Round(0)
	d.opts.step()
	err := d.store.Endpoints.Save(e)
	d.opts.step()
	return err
}

// enter calls do for an endpoint, with its lock and within the limit of a call.
func (d *Driver) enter(ctx context.Context, id string, do func(context.Context, *state.Endpoint) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	_, err := locked(ctx, d, id, d.store.Endpoints.Get, func(e *state.Endpoint) error { return do(ctx, e) })
	return err
}

// known is enter for an endpoint that may be missing: that is no error.
func (d *Driver) known(ctx context.Context, id string, do func(context.Context, *state.Endpoint) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	return ifFound(locked(ctx, d, id, d.store.Endpoints.Get, func(e *state.Endpoint) error { return do(ctx, e) }))
}

// knownLease calls do for a lease, with its lock. A missing lease is no error.
func (d *Driver) knownLease(ctx context.Context, id string, do func(*state.Allocation) error) error {
	return ifFound(locked(ctx, d, id, d.store.Leases.Get, do))
}

func ifFound(found bool, err error) error {
	if !found && errors.Is(err, state.ErrUnknown) {
		return nil
	}
	return err
}

// locked calls do for an endpoint or a lease, with its lock, and says whether there is one.
func locked[T any](ctx context.Context, d *Driver, id string, get func(string) (*T, error), do func(*T) error) (found bool, err error) {
	release, err := d.locks.take(ctx, id)
	if err != nil {
		return false, err
	}
	defer release()
	x, err := get(id)
	if err != nil {
		return false, err
	}
	return true, do(x)
}

// limit bounds a call.
func (d *Driver) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.opts.Limit)
}

// Capabilities implements cnm.NetworkDriver: networks belong to this host alone.
func (d *Driver) Capabilities(context.Context) (*cnm.Capabilities, error) {
	return &cnm.Capabilities{Scope: cnm.ScopeLocal, ConnectivityScope: cnm.ScopeLocal, GwAllocChecker: true}, nil
}

// locks are mutexes with names, which exist only while they are used. The zero value is
// ready.
type locks struct {
	mu  sync.Mutex
	all map[string]*named
}

type named struct {
	busy chan struct{} // holds one token while the lock is taken
	uses int           // number of holders and waiters
}

// take waits for a name's lock until ctx ends.
func (l *locks) take(ctx context.Context, name string) (release func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[string]*named)
	}
	n := l.all[name]
	if n == nil {
		n = &named{busy: make(chan struct{}, 1)}
		l.all[name] = n
	}
	n.uses++
	l.mu.Unlock()
	select {
	case n.busy <- struct{}{}:
		return func() { <-n.busy; l.leave(name, n) }, nil
	case <-ctx.Done():
		l.leave(name, n)
		return nil, fmt.Errorf("wait for the previous call: %w", ctx.Err())
	}
}

func (l *locks) leave(name string, n *named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.uses--; n.uses == 0 {
		delete(l.all, name)
	}
}
