// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker makes CNI networks available in Docker. It is the network driver and the IPAM
// driver of `patchbayd docker` (docs/docker.md, docs/adr/0030).
//
// Docker asks for the interface before the container exists, and moves the interface into the
// container itself. Docker supports only simple routes and no sysctls. So the driver runs a chain
// in three parts:
//
//	hold   its first plugin, in a holding namespace, at CreateEndpoint; Join puts
//	       the interface where libnetwork takes it from
//	post   the rest, in the container's namespace, after libnetwork moved the
//	       interface and before the container's process starts (Docker 28 and
//	       later; before, in the holding namespace at Join)
//	ports  the plugins that publish ports, when the endpoint gets the default gateway
//
// The driver does not need to know Docker's version: at Join it looks whether the sandbox
// exists.
//
// During a call of Docker, the driver does not ask Docker anything, because Docker is waiting for
// the call. A call for an endpoint waits for earlier calls for the same endpoint, but not for
// calls for other endpoints.
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
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/spec"
)

// Options configures a Driver. Only Plugins is required.
type Options struct {
	Plugins []string // directories with CNI plugins
	ConfDir string   // directory with network configurations; default /etc/cni/net.d
	Paths   paths.Paths
	Invoker invoke.Invoker // calls the plugins; if nil, plugins are executed as programs

	// Limit is the longest time for one call. It must be shorter than the server's limit. Then a
	// plugin that hangs is killed before the server answers Docker.
	Limit time.Duration // default 45 s
	// Grace is how old an unused object must be before the collector removes it.
	Grace    time.Duration // default 5 min
	DataRoot string        // Docker's data directory, where container names are found; default /var/lib/docker
	Docker   string        // URL of Docker's API, unix:///PATH or tcp://HOST:PORT; if empty, Docker is not asked
	Log      func(format string, args ...any)

	engine engine        // asks Docker for what it has; tests replace this
	doubt  time.Duration // inDoubt, or another value in tests
	place  time.Duration // placeTime, or another value in tests

	step func() // tests that kill the driver set this; it is called before and after each write of the state
}

// Driver implements cnm.NetworkDriver and cnm.IPAMDriver. Its methods may be called
// concurrently.
type Driver struct {
	opts  Options
	state *state.Dir
	boot  string
	locks locks
	run   map[part]*chain.Runtime
}

// Driver also publishes ports.
var (
	_ cnm.NetworkDriver = (*Driver)(nil)
	_ cnm.Connectivity  = (*Driver)(nil)
)

// New opens the state. It changes nothing else until Keep runs.
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
	d := &Driver{opts: o, state: store, boot: boot.ID, run: map[part]*chain.Runtime{}}
	for _, p := range []part{hold, post, ports, lease} {
		d.run[p] = d.runtime(p)
	}
	return d, nil
}

// runtime returns the runtime for one part. Each part has its own cache of results. The caches
// are not libcni's: another runtime that runs GC for the same network does not know our
// endpoints, and would remove what it finds there.
func (d *Driver) runtime(p part) *chain.Runtime {
	rt := chain.New(
		chain.WithPath(d.opts.Plugins...), chain.WithConfDir(d.opts.ConfDir), chain.WithInvoker(d.opts.Invoker), chain.WithRunDir(d.opts.Paths.Run),
		chain.WithCacheDir(filepath.Join(d.state.Path(), "cache", p.String())),
		chain.WithLimits(chain.Limits{Rollback: rollbackTime}),
		chain.WithWarn(func(err error) { d.opts.Log("warning: %v", err) }),
		chain.WithEvent(func(e chain.Event) {
			d.opts.Log("%s %s %s/%.12s: %s in %v%s", e.Verb, e.Plugin, e.Network, e.ContainerID, e.Outcome(), e.Duration.Round(time.Millisecond), because(e.Err))
		}))
	if p == lease { // for a failed ADD, ask calls DEL itself, and keeps the lease if that fails
		rt = rt.With(chain.WithNoRollback())
	}
	return rt
}

// execer executes plugins. A plugin may call a Docker driver itself, so execer passes the
// nesting depth on.
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

// Down returns a handler that answers every call with an error, for a driver that cannot start.
func Down(why error) *cnm.Handler {
	d := new(Driver) // answers Activate and GetCapabilities; the handler calls no other method
	return &cnm.Handler{
		Network: d, IPAM: d,
		Down: fmt.Errorf("the network driver cannot start (journalctl -u patchbay-docker): %w", why),
	}
}

// save writes an endpoint to the disk before the driver goes on.
func (d *Driver) save(e *state.Endpoint) error {
	e.Changed = time.Now().UTC().Round(0)
	d.opts.step()
	err := d.state.Endpoints.Save(e)
	d.opts.step()
	return err
}

// enter calls do for an endpoint. It holds the endpoint's lock meanwhile, and limits the time.
func (d *Driver) enter(ctx context.Context, id string, do func(context.Context, *state.Endpoint) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	_, err := locked(ctx, d, id, d.state.Endpoints.Get, func(e *state.Endpoint) error { return do(ctx, e) })
	return err
}

// enterIfExists works like enter, but accepts that the endpoint does not exist.
func (d *Driver) enterIfExists(ctx context.Context, id string, do func(context.Context, *state.Endpoint) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	return ifFound(locked(ctx, d, id, d.state.Endpoints.Get, func(e *state.Endpoint) error { return do(ctx, e) }))
}

// leaseIfExists calls do for a lease while it holds the lease's lock. It accepts that the lease does
// not exist.
func (d *Driver) leaseIfExists(ctx context.Context, id string, do func(*state.Allocation) error) error {
	return ifFound(locked(ctx, d, id, d.state.Leases.Get, do))
}

func ifFound(found bool, err error) error {
	if !found && errors.Is(err, state.ErrUnknown) {
		return nil
	}
	return err
}

// locked calls do for an endpoint or a lease while it holds the lock. found reports whether the
// object exists.
func locked[T any](ctx context.Context, d *Driver, id string, get func(string) (*T, error), do func(*T) error) (found bool, err error) {
	release, err := d.locks.lock(ctx, id)
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

// limit returns a context for one call.
func (d *Driver) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.opts.Limit)
}

// Capabilities implements cnm.NetworkDriver. It says that each network exists on only one host.
func (d *Driver) Capabilities(context.Context) (*cnm.Capabilities, error) {
	return &cnm.Capabilities{Scope: cnm.ScopeLocal, ConnectivityScope: cnm.ScopeLocal, GwAllocChecker: true}, nil
}

// locks is a set of mutexes with names. A mutex exists only while it is used. The zero value is
// ready for use.
type locks struct {
	mu  sync.Mutex
	all map[string]*named
}

type named struct {
	busy chan struct{} // holds a token while the lock is taken
	uses int           // the number of goroutines that hold the lock or wait for it
}

// lock waits until it gets the lock of a name, or until ctx ends.
func (l *locks) lock(ctx context.Context, name string) (release func(), err error) {
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
