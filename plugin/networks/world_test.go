// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/patchbay"
	"github.com/patchbay-net/patchbay/spec"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a pod and its network: ptp, policy and networks in one process.
type world struct {
	t          *testing.T
	ns         string
	annotation string // of the pod, as JSON; the runtime passes it
	conf       string // further keys of the plugin networks, after a comma
	runtime    string // further keys of runtimeConfig, after a comma
	silent     bool   // the runtime passes no annotations
	fault      func(step string) error
	tape       *tape
	log        bytes.Buffer
	lines      []string // of a dry run
	dry        bool
}

func newWorld(t *testing.T, annotation string) *world {
	data, err := json.Marshal(annotation)
	must(t, err)
	return &world{t: t, ns: nettest.NewNS(t, fmt.Sprint("networks", worlds.Add(1))), annotation: string(data), tape: &tape{}}
}

var worlds atomic.Int32

const podArgs = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_UID=5f0c"

// config is the configuration of the pods' network.
func (w *world) config(more string) string {
	annotations := fmt.Sprintf(`{"k8s.v1.cni.cncf.io/networks":%s,"kubernetes.io/config.source":"api"}`, w.annotation)
	if w.silent {
		annotations = "null"
	}
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"patchbay","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","subnet":"10.93.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}},
		{"type":"policy"},
		{"type":"networks","wait":"0s","capabilities":{"io.kubernetes.cri.pod-annotations":true,"portMappings":true}%s}],
		"runtimeConfig":{"io.kubernetes.cri.pod-annotations":%s%s}%s}`,
		w.conf, annotations, w.runtime, more)
}

func (w *world) plugins() []*plugin.Plugin {
	return append([]*plugin.Plugin{&patchbay.Plugin, &Plugin, w.tape.plugin("tape"), w.tape.plugin("other")}, delegates...)
}

func (w *world) session() *plugin.Session {
	s := plugin.NewSession(w.plugins())
	s.Stderr, s.Fault = &w.log, w.fault
	if w.dry {
		s.Dry = func(line string) { w.lines = append(w.lines, line) }
	}
	return s
}

func (w *world) request(verb spec.Verb, more string) *spec.Call {
	call := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: []byte(w.config(more))}
	if call.PerContainer() {
		call.ContainerID, call.NetNS, call.IfName, call.Args = "c1", w.ns, "eth0", podArgs
	}
	return call
}

func (w *world) call(verb spec.Verb, more string) ([]byte, error) {
	b := plugin.Builtin{NewSession: w.session}
	return b.Invoke(context.Background(), "patchbay", w.request(verb, more))
}

// add runs an ADD that succeeds.
func (w *world) add() *spec.Result {
	w.t.Helper()
	out, err := w.call(spec.Add, "")
	must(w.t, err)
	result, err := spec.ParseResult(out, "")
	must(w.t, err)
	return result
}

func (w *world) plan() *npwg.Plan { return readPlan(w.t, "pods") }

func readPlan(t testing.TB, network string) *npwg.Plan {
	t.Helper()
	plan, err := attached.Read(paths.Default(), owner.Of(network, "c1", "eth0"))
	must(t, err)
	return plan
}

// alone is a call of the plugin without its chain, in a network of its own.
func (w *world) alone(verb spec.Verb) *spec.Call {
	call := w.request(verb, "")
	call.Config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"alone","type":"networks","wait":"0s",
		"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":%s}},
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}]}}`, w.annotation, w.ns)
	return call
}

func (w *world) invoke(call *spec.Call) ([]byte, error) {
	b := plugin.Builtin{NewSession: w.session}
	return b.Invoke(context.Background(), name, call)
}

// warm makes what stays with the networks, and returns what is on the node then.
func (w *world) warm() leak.State {
	w.t.Helper()
	w.add()
	_, err := w.call(spec.Del, "")
	must(w.t, err)
	w.tape.lines = nil
	return leak.Must(w.t)
}

// refused runs an ADD that fails with this text, and leaves nothing.
func (w *world) refused(want string) error {
	w.t.Helper()
	before := leak.Must(w.t)
	_, err := w.call(spec.Add, "")
	if err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("ADD: %v\nwant %s", err, want)
	}
	leak.NoLeaks(w.t, before)
	return err
}

// tape records the calls of a further network's plugins.
type tape struct {
	lines []string // "type VERB interface"
	calls map[string]spec.Call
	fails string // the line that fails
}

func (l *tape) record(r *plugin.Request) error {
	line := fmt.Sprintf("%s %s %s", r.Plugin.Name, r.Verb, r.IfName)
	l.lines = append(l.lines, line)
	if l.calls == nil {
		l.calls = make(map[string]spec.Call)
	}
	l.calls[line] = *r.Call
	if line == l.fails {
		return errors.New("no")
	}
	return nil
}

// plugin makes a plugin whose ADD has no effect. Its result has the address 10.99.0.7.
func (l *tape) plugin(name string) *plugin.Plugin {
	record := func(_ context.Context, r *plugin.Request) error { return l.record(r) }
	return &plugin.Plugin{
		Name: name, Del: record, Check: record,
		Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
			if r.Prev() != nil {
				return r.Prev(), l.record(r)
			}
			index := 0
			result := &spec.Result{Interfaces: []spec.Interface{{Name: r.IfName, Mac: "02:00:00:00:00:07", Sandbox: r.NetNS}}}
			result.IPs = []spec.IPConfig{{Interface: &index, Address: mustPrefix("10.99.0.7/16")}}
			return result, l.record(r)
		},
	}
}
