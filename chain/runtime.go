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

// Where things are unless a Runtime says otherwise.
const (
	DefaultConfDir  = "/etc/cni/net.d"
	DefaultCacheDir = "/var/lib/cni" // libcni's; results are in results/
	DefaultRunDir   = "/run/patchbay"
)

// Runtime runs the plugins of networks. Only Path is required. It holds no
// state and may be used by several goroutines.
type Runtime struct {
	Path     []string       // directories of plugins, handed on as CNI_PATH
	ConfDir  string         // configurations
	CacheDir string         // results
	RunDir   string         // locks
	Invoker  invoke.Invoker // how plugins are called; nil means by exec

	// FileDecides is for who reads the file of a network for each ADD: the ADD of a list
	// whose file was removed or changed since it was read is refused with code 11, so
	// that what ran Exclusive holds. Without it a list is its owner's: an ADD takes it as
	// it was read, whatever became of the file.
	FileDecides bool
	// NoRollback leaves what a failed ADD made to the caller's DEL.
	NoRollback bool
	// RollbackTime bounds the taking back of a failed ADD, which goes on when the
	// caller's context has ended; default a minute.
	RollbackTime time.Duration
	// LockTime is how long an operation waits for another one on the same container,
	// or a GC on the same network; default a minute. A GC gives up after ten seconds
	// at most, since new operations wait for it.
	LockTime time.Duration
	// AskTime is how long a plugin may take to answer STATUS, VERSION or Inspect; zero sets no
	// end but the context's.
	AskTime time.Duration
	// DelTime is how long a plugin may take for a DEL that a GC makes; default half a
	// minute. Its GC, which may remove many, has twenty times that.
	DelTime time.Duration
	// Event, when set, hears of every call of a plugin after it ended. Calls
	// of one operation come one after the other.
	Event func(Event)
	// Warn, when set, hears of what was survived: a broken configuration of
	// another network, a cached result that cannot be read.
	Warn func(error)
}

// Attachment is one interface of a container on a network.
type Attachment struct {
	ContainerID string
	NetNS       string // path of the namespace; may be empty for DEL
	IfName      string
	Args        [][2]string // CNI_ARGS, in this order
	// Capabilities is what the runtime knows, by capability. A plugin gets
	// those it declares.
	Capabilities map[string]any
	// Prev is the result the first plugin of an ADD builds on, for a list that is
	// the rest of a chain whose beginning ran elsewhere, and what a failed ADD is
	// rolled back with. It is not cached, but the result that grew from it is: CHECK
	// and DEL go on from that. Beginning and rest have one key, so each needs a
	// CacheDir of its own.
	Prev *spec.Result
}

// Load reads the configuration of a network from ConfDir. Broken files of
// other networks go to Warn.
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

// call is the envelope for one plugin without its configuration. a is empty
// for the verbs that are about no container.
func (rt *Runtime) call(ctx context.Context, verb spec.Verb, a *Attachment) *spec.Call {
	t := trace(ctx)
	return &spec.Call{
		Verb: verb, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: joinArgs(a.Args), Path: rt.Path,
		NetNSOverride: override(os.Getenv("CNI_NETNS_OVERRIDE")),
		TraceParent:   t.Parent, TraceState: t.State, Baggage: t.Baggage,
	}
}

// override reads libcni's extension, which an exec'd plugin would inherit.
func override(s string) bool { return s == "1" || strings.EqualFold(s, "true") }

func joinArgs(args [][2]string) string {
	pairs := make([]string, len(args))
	for i, kv := range args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// run calls one plugin and tells Event.
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
