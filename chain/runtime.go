// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// The defaults of a Runtime's directories.
const (
	DefaultConfDir  = "/etc/cni/net.d"
	DefaultCacheDir = "/var/lib/cni" // libcni's; results are in results/
	DefaultRunDir   = "/run/patchbay"
)

// Runtime runs the plugins of networks. Only Path is required. It holds no
// state and may be used by several goroutines.
type Runtime struct {
	Path     []string       // directories of plugins, passed on as CNI_PATH
	ConfDir  string         // configurations
	CacheDir string         // results
	RunDir   string         // locks
	Invoker  invoke.Invoker // how plugins are called; nil means by exec

	// FileDecides is for a caller that reads the file of a network for each ADD: Add
	// refuses a list whose file was removed or changed since it was read with code 11, so
	// that changes made in Exclusive are final. Without it the caller owns the list: Add
	// uses it as it was read, whatever happens to the file.
	FileDecides bool
	// NoRollback leaves the cleanup of a failed ADD to the caller's DEL.
	NoRollback bool
	// RollbackTime limits the rollback of a failed ADD, which goes on when the caller's
	// context has ended; default a minute.
	RollbackTime time.Duration
	// LockTime is how long an operation waits for another one on the same container, or for
	// a GC on the same network; default a minute. A GC gives up after ten seconds at most,
	// since new operations wait for it.
	LockTime time.Duration
	// AskTime is how long a plugin may take to answer STATUS, VERSION or Inspect; with zero
	// only the context limits it.
	AskTime time.Duration
	// DelTime is how long a plugin may take for a DEL of a GC; default half a minute. The
	// plugin's GC, which may remove many, has twenty times as long.
	DelTime time.Duration
	// Event, if set, is called after every call of a plugin. The calls of one operation
	// come one after the other.
	Event func(Event)
	// Warn, if set, receives errors that do not fail the operation: a broken configuration
	// of another network, a cached result that cannot be read.
	Warn func(error)
}

// Attachment is one interface of a container on a network.
type Attachment struct {
	ContainerID string
	NetNS       string // path of the namespace; may be empty for DEL
	IfName      string
	Args        [][2]string // CNI_ARGS, in this order
	// Capabilities are the values that the runtime has for capabilities. A plugin gets
	// those that it declares.
	Capabilities map[string]any
	// Prev is the previous result for the first plugin of an ADD, for a list that is the
	// rest of a chain whose first part ran elsewhere; a failed ADD is rolled back with it.
	// It is not cached, but the result built on it is: CHECK and DEL use that. First part
	// and rest have one key, so each needs a CacheDir of its own.
	Prev *spec.Result
}

// Load reads the configuration of a network from ConfDir. It passes broken files of other
// networks to Warn.
func (rt *Runtime) Load(name string) (*List, error) {
	d, err := LoadDir(rt.confDir())
	if err != nil {
		return nil, err
	}
	list, err := d.Find(name)
	if err != nil {
		return nil, err
	}
	for _, b := range d.Broken {
		rt.warn(b)
	}
	return list, nil
}

func (rt *Runtime) confDir() string { return or(rt.ConfDir, DefaultConfDir) }
func (rt *Runtime) results() string {
	return filepath.Join(or(rt.CacheDir, DefaultCacheDir), "results")
}
func (rt *Runtime) locks() string { return filepath.Join(or(rt.RunDir, DefaultRunDir), "locks") }

func or(value, def string) string {
	if value == "" {
		return def
	}
	return value
}

func (rt *Runtime) warn(err error) {
	if rt.Warn != nil {
		rt.Warn(err)
	}
}

func (rt *Runtime) invoker() invoke.Invoker {
	if rt.Invoker == nil {
		return &invoke.Exec{}
	}
	return rt.Invoker
}

// validate refuses names that could not be stored, before any work.
func (a *Attachment) validate(list *List) error {
	if err := spec.ValidateContainerID(a.ContainerID); err != nil {
		return err
	}
	if err := spec.ValidateNetworkName(list.Name); err != nil {
		return err
	}
	if err := spec.ValidateIfName(a.IfName); err != nil {
		return err
	}
	return fileNameFits(cacheName(list.Name, a))
}

// call is the envelope for one plugin without its configuration. a is empty for verbs
// without a container.
func (rt *Runtime) call(ctx context.Context, verb spec.Verb, a *Attachment) *spec.Call {
	t := trace(ctx)
	return &spec.Call{
		Verb: verb, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: joinArgs(a.Args), Path: rt.Path,
		NetNSOverride: override(os.Getenv("CNI_NETNS_OVERRIDE")),
		TraceParent:   t.Parent, TraceState: t.State, Baggage: t.Baggage,
	}
}

// override reads libcni's extension, which a plugin run by exec would inherit.
func override(s string) bool { return s == "1" || strings.EqualFold(s, "true") }

func joinArgs(args [][2]string) string {
	pairs := make([]string, len(args))
	for i, kv := range args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// run calls one plugin and then Event.
func (rt *Runtime) run(ctx context.Context, p *Plugin, r *request, call *spec.Call, rollback bool) (out []byte, err error) {
	e := Event{
		Network: r.list.Name, ContainerID: call.ContainerID, IfName: call.IfName,
		Plugin: p.Type, Verb: call.Verb, Rollback: rollback, Start: time.Now(),
	}
	if call.Config, err = r.config(p); err == nil {
		out, err = rt.invoker().Invoke(ctx, p.Type, call)
	}
	if rt.Event != nil {
		e.Duration, e.Output, e.Err = time.Since(e.Start), len(out), err
		rt.Event(e)
	}
	return out, err
}
