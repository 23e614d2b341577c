// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
)

// These are the default directories of a Runtime.
const (
	DefaultPluginDir = "/opt/cni/bin"
	DefaultConfDir   = "/etc/cni/net.d"
	DefaultCacheDir  = "/var/lib/cni" // libcni's directory; the results are in its subdirectory results
	DefaultRunDir    = "/run/patchbay"
)

// Option sets one property of a Runtime.
type Option func(*Runtime)

// New returns a Runtime. Without options it has the default directories and executes plugins as programs.
func New(opts ...Option) *Runtime {
	rt := &Runtime{
		path: []string{DefaultPluginDir}, confDir: DefaultConfDir, cacheDir: DefaultCacheDir, runDir: DefaultRunDir,
		invoker: &invoke.Exec{},
		limits:  Limits{Rollback: time.Minute, Lock: time.Minute, Del: 30 * time.Second},
	}
	return rt.With(opts...)
}

// With returns a copy of rt that also has opts.
func (rt *Runtime) With(opts ...Option) *Runtime {
	c := *rt
	for _, o := range opts {
		o(&c)
	}
	return &c
}

// WithPath sets the directories of plugins, which the plugins get as CNI_PATH. Without one, the path stays.
func WithPath(dirs ...string) Option {
	return func(rt *Runtime) {
		if len(dirs) > 0 {
			rt.path = dirs
		}
	}
}

// WithConfDir sets the directory of network configurations. This option and the next two ignore an empty name.
func WithConfDir(dir string) Option {
	return func(rt *Runtime) { rt.confDir = cmp.Or(dir, rt.confDir) }
}

// WithCacheDir sets the parent directory of the cached results.
func WithCacheDir(dir string) Option {
	return func(rt *Runtime) { rt.cacheDir = cmp.Or(dir, rt.cacheDir) }
}

// WithRunDir sets the parent directory of the locks.
func WithRunDir(dir string) Option {
	return func(rt *Runtime) { rt.runDir = cmp.Or(dir, rt.runDir) }
}

// WithDefaultNetwork names the default network. Otherwise the default network is that of the first file.
func WithDefaultNetwork(name string) Option {
	return func(rt *Runtime) { rt.defaultNetwork = name }
}

// WithLoad sets how a network is found by its name, in the place of the files of the directory of configurations. If there is no
// such network, load returns an error of which is ErrNoNetwork. nil changes nothing.
func WithLoad(load func(name string) (*List, error)) Option {
	return func(rt *Runtime) {
		if load != nil {
			rt.loadNetwork = load
		}
	}
}

// WithInvoker sets what calls the plugins, for example a plugin.Builtin in this process. nil changes nothing.
func WithInvoker(in invoke.Invoker) Option {
	return func(rt *Runtime) {
		if in != nil {
			rt.invoker = in
		}
	}
}

// WithFileDecides is for callers that read the network's file for each ADD. If the list's file was
// removed or changed after it was read, Add refuses the list with code 11. So no ADD undoes a
// change that another process made in Exclusive. Without WithFileDecides, Add uses the list as it
// was read, whatever happens to the file.
func WithFileDecides() Option { return func(rt *Runtime) { rt.fileDecides = true } }

// WithNoRollback stops Add and Attach from calling DEL after a failed ADD; the caller must run DEL.
func WithNoRollback() Option { return func(rt *Runtime) { rt.noRollback = true } }

// Limits are the times that the parts of an operation may take.
type Limits struct {
	// Rollback limits the DELs after a failed ADD. They go on when the caller's context ends.
	// Default: one minute.
	Rollback time.Duration
	// Lock is how long an operation waits for another operation on the same container, or for a
	// GC on the same network. Default: one minute. A GC waits ten seconds at most for operations that
	// run, because new operations of the network wait behind it, and does not wait for a container.
	Lock time.Duration
	// Ask is how long a plugin may take to answer STATUS, VERSION or Inspect. Default: as long as the
	// caller's context allows.
	Ask time.Duration
	// Del is how long a plugin may take for each DEL that GC calls. Default: 30 seconds. The
	// verb GC of a plugin gets twenty times as long, because it may remove many attachments, but no more than
	// Del or half of Lock, whichever is longer. What is left then, the next GC removes.
	Del time.Duration
}

// WithLimits sets those limits that are not 0.
func WithLimits(l Limits) Option {
	return func(rt *Runtime) {
		rt.limits = Limits{
			Rollback: cmp.Or(l.Rollback, rt.limits.Rollback), Lock: cmp.Or(l.Lock, rt.limits.Lock),
			Ask: cmp.Or(l.Ask, rt.limits.Ask), Del: cmp.Or(l.Del, rt.limits.Del),
		}
	}
}

// WithEvent calls fn after each call of a plugin. The events of one operation never overlap. nil ends the events.
func WithEvent(fn func(Event)) Option { return func(rt *Runtime) { rt.event = fn } }

// WithWarn calls fn with errors that do not fail the operation, such as a broken configuration of another
// network or a cached result that cannot be read. nil ends the warnings.
func WithWarn(fn func(error)) Option { return func(rt *Runtime) { rt.warning = fn } }
