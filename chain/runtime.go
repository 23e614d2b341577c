// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chain is the runtime library: it loads network configurations and
// runs their plugins as the specification asks a container runtime to
// (SPEC.md sections 1 and 3).
//
//	rt := chain.New(chain.WithPath("/opt/cni/bin"))
//	results, err := rt.Attach(ctx, chain.Container{ID: id, NetNS: ns}, chain.Network{Name: "mynet"})
//
// Attach and Detach work on all networks of a container. Add, Del and Check work on one attachment
// with a List, which Load, Default and ParseList read.
//
// An ADD is a transaction: if a plugin fails, every plugin of the list gets a DEL. A DEL calls
// every plugin, even after an error. It keeps the cached result until all plugins have succeeded.
// File locks work between processes too: operations on one container run one after another, and
// no GC runs during an ADD or DEL.
//
// Results are cached in libcni's format and place. So on a live node a runtime that uses libcni
// can be replaced by one that uses this library, and the reverse. docs/libcni.md lists the
// differences from libcni; tests check that list.
package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Runtime runs the plugins of networks. New makes one. A Runtime keeps no state in memory: each Load reads the
// files as they are, so there is nothing to reload when they change. Several goroutines may use a Runtime.
type Runtime struct {
	path                      []string
	confDir, cacheDir, runDir string
	defaultNetwork            string                           // empty: that of the first file
	loadNetwork               func(name string) (*List, error) // nil: from confDir
	invoker                   invoke.Invoker
	fileDecides, noRollback   bool
	limits                    Limits
	event                     func(Event)
	warning                   func(error)
}

// Path returns the directories of plugins.
func (rt *Runtime) Path() []string { return rt.path }

// Attachment is one interface of a container on a network.
type Attachment struct {
	ContainerID string
	NetNS       string // path of the container's namespace; may be empty for DEL
	IfName      string
	Args        [][2]string // CNI_ARGS, in this order
	// Capabilities holds the runtime's value for each capability. A plugin gets only the
	// capabilities that it declares.
	Capabilities map[string]any
	// Prev is the previous result for the first plugin of an ADD. Prev serves a list that continues
	// a chain whose first part ran elsewhere. If the ADD fails, its DELs get Prev too. Prev is not
	// cached: CHECK and DEL use the cached result of the ADD, which contains it. Both parts of the
	// chain have the same name in the cache, so each part needs its own CacheDir.
	Prev *spec.Result
}

func (rt *Runtime) results() string { return results.Dir(rt.cacheDir) }
func (rt *Runtime) locks() string   { return filepath.Join(rt.runDir, "locks") }

func (rt *Runtime) warn(err error) {
	if rt.warning != nil {
		rt.warning(err)
	}
}

// validate refuses names that cannot be stored, before any other work.
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

// call builds the environment of a plugin call; config builds its standard input. For verbs that
// concern no container, a is empty.
func (rt *Runtime) call(ctx context.Context, verb spec.Verb, a *Attachment) *spec.Call {
	t := trace(ctx)
	return &spec.Call{
		Verb: verb, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: joinArgs(a.Args), Path: rt.path,
		NetNSOverride: spec.NetNSOverride(os.Getenv),
		TraceParent:   t.Parent, TraceState: t.State, Baggage: t.Baggage,
	}
}

func joinArgs(args [][2]string) string {
	pairs := make([]string, len(args))
	for i, kv := range args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// run calls one plugin, then the function Event.
func (rt *Runtime) run(ctx context.Context, p *Plugin, r *request, call *spec.Call, rollback bool) (out []byte, err error) {
	e := Event{
		Network: r.list.Name, ContainerID: call.ContainerID, IfName: call.IfName,
		Plugin: p.Type, Verb: call.Verb, Rollback: rollback, Start: time.Now(),
	}
	if call.Config, err = r.config(p); err == nil {
		out, err = rt.invoker.Invoke(ctx, p.Type, call)
	}
	if rt.event != nil {
		e.Duration, e.Output, e.Err = time.Since(e.Start), len(out), err
		rt.event(e)
	}
	return out, err
}

// Event describes one finished call of a plugin. Event serves logs and traces.
type Event struct {
	Network     string
	ContainerID string // empty for GC, STATUS and VERSION
	IfName      string
	Plugin      string // type of the plugin
	Verb        spec.Verb
	Rollback    bool // a DEL after a failed ADD
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

// Code returns the CNI code of Err, or 0 if Err is nil.
func (e *Event) Code() spec.Code { return spec.ErrorCode(e.Err) }

// Trace is a W3C trace context. The plugins get it unchanged (cni#1173).
type Trace struct{ Parent, State, Baggage string }

type traceKey struct{}

// WithTrace returns a context that makes every plugin call carry t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// trace returns the trace context of ctx. If ctx has none, trace reads it from the process's
// environment.
func trace(ctx context.Context) Trace {
	if t, ok := ctx.Value(traceKey{}).(Trace); ok {
		return t
	}
	return Trace{os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE"), os.Getenv("BAGGAGE")}
}

// request builds the standard input of each plugin from the plugin's object in the list
// (spec.Object.Runtime).
type request struct {
	list         *List
	capabilities map[string]any // nil outside ADD, DEL and CHECK
	prevResult   json.RawMessage
	valid        *[]spec.AttachmentKey // GC only
	listed       time.Time             // GC only: time at which valid was listed
	everyones    bool                  // GC only: Keep.Everyones
}

// config returns the standard input for one plugin.
func (r *request) config(p *Plugin) ([]byte, error) {
	conf, err := spec.ParseObject(p.Raw)
	if err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "unmarshal existing network bytes: %w", err)
	}
	keys := spec.RuntimeKeys{Name: r.list.Name, CNIVersion: r.list.CNIVersion, Prev: r.prevResult}
	if keys.Config, err = r.share(p); err != nil {
		return nil, err
	}
	if r.valid != nil {
		keys.GC = &spec.GCKeys{Valid: *r.valid, Listed: r.listed, Everyones: r.everyones}
	}
	if err := conf.Runtime(keys); err != nil {
		return nil, fmt.Errorf("plugin %s: %w", p, err)
	}
	return conf.JSON()
}

// share returns those of the caller's capabilities that the plugin declares. If there are none, it returns
// nil.
func (r *request) share(p *Plugin) (out map[string]json.RawMessage, err error) {
	for name, on := range p.Capabilities {
		value, ok := r.capabilities[name]
		if !on || !ok {
			continue
		}
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode runtimeConfig of plugin %s: %w", p, err)
		}
		if out == nil {
			out = make(map[string]json.RawMessage)
		}
		out[name] = data
	}
	return out, nil
}
