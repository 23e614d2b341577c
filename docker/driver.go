// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
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
	Limit time.Duration
	// Grace is the least age at which Sweep removes unused things.
	Grace    time.Duration
	DataRoot string // Docker's, to find names of containers; default /var/lib/docker
	Engine   Engine // asks Docker for its networks; nil: Docker is not asked
	Log      func(format string, args ...any)

	doubt time.Duration // for tests: inDoubt
	place time.Duration // for tests: placeTime

	step func() // called before and after the state is written; for tests that kill
}

// The defaults of Options.
const (
	DefaultLimit    = 45 * time.Second
	DefaultGrace    = 5 * time.Minute
	DefaultDataRoot = "/var/lib/docker"
)

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

// New opens the state. It changes nothing else: Sweep does.
func New(o Options) (*Driver, error) {
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.DataRoot == "" {
		o.DataRoot = DefaultDataRoot
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.doubt == 0 {
		o.doubt = inDoubt
	}
	if o.place == 0 {
		o.place = placeTime
	}
	if o.step == nil {
		o.step = func() {}
	}
	if o.Invoker == nil {
		o.Invoker = execer{}
	}
	if len(o.Plugins) == 0 {
		return nil, errors.New("no directory of CNI plugins")
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

// limit bounds a call.
func (d *Driver) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.opts.Limit)
}

// Capabilities implements cnm.NetworkDriver: networks belong to this host alone.
func (d *Driver) Capabilities(context.Context) (*cnm.Capabilities, error) {
	return &cnm.Capabilities{Scope: cnm.ScopeLocal, ConnectivityScope: cnm.ScopeLocal, GwAllocChecker: true}, nil
}
