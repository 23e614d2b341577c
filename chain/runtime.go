// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chain is the runtime library: it loads network configurations and
// runs their plugins as the specification asks a container runtime to
// (SPEC.md sections 1 and 3).
//
//	rt := &chain.Runtime{Path: []string{"/opt/cni/bin"}}
//	list, err := rt.Load("mynet")
//	result, err := rt.Add(ctx, list, chain.Attachment{ContainerID: id, NetNS: ns, IfName: "eth0"})
//
// An ADD is a transaction: when a plugin fails, every plugin of the list gets a DEL. A DEL
// calls every plugin, goes on after errors, and keeps the cached result until all of them
// succeeded. File locks make operations on one container run one after another and keep GC
// apart from ADD and DEL, also between processes.
//
// Results are cached in libcni's format and place, so that a runtime on libcni and one on
// this library can take over from each other on a live node. docs/libcni.md lists the
// differences from libcni, and tests check them.
package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
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

// Event describes one finished call of a plugin, for logs and traces.
type Event struct {
	Network     string
	ContainerID string // empty for GC, STATUS and VERSION
	IfName      string
	Plugin      string // its type
	Verb        spec.Verb
	Rollback    bool // a DEL that rolls back a failed ADD
	Start       time.Time
	Duration    time.Duration
	Output      int // bytes of standard output
	Err         error
}

// Outcome is "ok" or "error".
func (e *Event) Outcome() string {
	if e.Err != nil {
		return "error"
	}
	return "ok"
}

// Code is the CNI code of Err, 0 without one.
func (e *Event) Code() spec.Code { return spec.ErrorCode(e.Err) }

// Trace is W3C trace context, passed to the plugins unchanged (cni#1173).
type Trace struct{ Parent, State, Baggage string }

type traceKey struct{}

// WithTrace returns a context whose plugin calls carry t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// trace is the context's, else that of the process's environment.
func trace(ctx context.Context) Trace {
	if t, ok := ctx.Value(traceKey{}).(Trace); ok {
		return t
	}
	return Trace{os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE"), os.Getenv("BAGGAGE")}
}

// request derives a plugin's standard input from its object in the list (SPEC.md, "Deriving
// request configuration"): the list's name and version, the keys that the runtime sets, and
// its share of the capabilities. Keys that only the runtime may set are removed, in any
// letter case, because plugins match keys in any case.
type request struct {
	list         *List
	capabilities map[string]any // nil outside ADD, DEL and CHECK
	prevResult   json.RawMessage
	valid        *[]spec.Attachment // GC
	listed       time.Time          // GC: when that list was begun
}

// config returns the request for one plugin.
func (r *request) config(p *Plugin) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "unmarshal existing network bytes: %w", err)
	}
	set := map[string]any{"name": r.list.Name, "cniVersion": r.list.CNIVersion}
	if share := r.share(p); len(share) > 0 {
		set["runtimeConfig"] = share
	}
	if len(r.prevResult) > 0 {
		set["prevResult"] = r.prevResult
	}
	if r.valid != nil {
		set["cni.dev/valid-attachments"] = *r.valid
		set["cni.dev/attachments"] = *r.valid // the name in the 1.1.0 text (cni#1101)
		set[clock.ListedKey] = r.listed
	}
	strip(conf, set)
	for key, value := range set {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode %s of plugin %s: %w", key, p, err)
		}
		conf[key] = data
	}
	return json.Marshal(conf)
}

// share is the intersection of the capabilities that the plugin declares and the caller
// gives.
func (r *request) share(p *Plugin) map[string]any {
	out := map[string]any{}
	for name, on := range p.Capabilities {
		if value, ok := r.capabilities[name]; on && ok {
			out[name] = value
		}
	}
	return out
}

// strip removes the keys that must not come from the file, and those that set
// replaces.
func strip(conf map[string]json.RawMessage, set map[string]any) {
	for key := range conf {
		lower := strings.ToLower(key)
		drop := lower == "capabilities" || lower == "prevresult" || strings.HasPrefix(lower, "cni.dev/")
		for name := range set {
			drop = drop || strings.EqualFold(key, name)
		}
		if drop {
			delete(conf, key)
		}
	}
}
