// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// talker does what its configuration says: the key "do" names an outcome.
var talker = plugin.Plugin{
	Name: "talker", Kind: plugin.Interface, About: "talks", MinVersion: "0.3.0",
	Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
		if err := talk(r); err != nil {
			return nil, err
		}
		zero := 0
		return &spec.Result{
			Interfaces: []spec.Interface{{Name: r.IfName, Sandbox: r.NetNS, MTU: 1400}},
			IPs:        []spec.IPConfig{{Interface: &zero, Address: netip.MustParsePrefix("10.0.0.2/24")}},
			DNS:        spec.DNS{Search: []string{"<&>é"}},
		}, nil
	},
	Del:    func(_ context.Context, r *plugin.Request) error { return talk(r) },
	Check:  func(_ context.Context, r *plugin.Request) error { return talk(r) },
	GC:     func(_ context.Context, r *plugin.Request) error { return talk(r) },
	Status: func(_ context.Context, r *plugin.Request) error { return talk(r) },
}

func talk(r *plugin.Request) error {
	var conf struct{ Do string }
	if err := r.Decode(&conf); err != nil {
		return err
	}
	coded := spec.Errorf(spec.CodeTryAgain, "busy: %w", errors.New("<later>")).WithDetails("of %s", r.IfName)
	switch conf.Do {
	case "coded":
		return coded
	case "wrapped":
		return fmt.Errorf("outer: %w", coded)
	case "plain":
		return errors.New("plain \"error\"\nof two lines")
	case "joined":
		return errors.Join(errors.New("first"), coded)
	case "undo":
		r.Undo(func(context.Context) error { return errors.New("stuck") })
		return coded
	case "panic":
		panic("on purpose")
	}
	return nil
}

func TestMain(m *testing.M) { plugintest.Main(m, &talker, &writer) }

// TestSameBytesBothWays calls a plugin by exec and in process, and compares standard output byte
// for byte and error objects field by field.
func TestSameBytesBothWays(t *testing.T) {
	ns := nettest.NewNS(t, "both")
	path := []string{plugintest.Install(t, &talker)}
	exec := &invoke.Exec{}
	builtin := &plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{&talker}) }}
	for _, call := range calls(t, ns) {
		call.Path = path
		name := fmt.Sprintf("%s %s %s %s", call.Verb, call.ContainerID, call.IfName, call.Config)
		a, aerr := exec.Invoke(t.Context(), "talker", &call)
		b, berr := builtin.Invoke(t.Context(), "talker", &call)
		if string(a) != string(b) {
			t.Errorf("%s:\nexec       %s\nin process %s", name, a, b)
		}
		sameErrors(t, name, aerr, berr)
	}
}

// taken is a context that removes a program at the moment of its start. It can do so because
// os/exec asks the context just before the start.
type taken struct {
	context.Context
	path string
}

func (t taken) Done() <-chan struct{} {
	_ = os.Remove(t.path)
	return t.Context.Done()
}

// TestTakenByAnInstaller lets `install --remove` delete a program between the lookup and the
// start. No DEL of a process that has the plugin fails, and no ADD.
func TestTakenByAnInstaller(t *testing.T) {
	ns := nettest.NewNS(t, "taken")
	conf := []byte(`{"cniVersion":"1.1.0","name":"n","type":"talker"}`)
	for _, verb := range []spec.Verb{spec.Add, spec.Del} {
		dir := t.TempDir()
		path := filepath.Join(dir, "talker")
		if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		s := plugin.NewSession([]*plugin.Plugin{&talker})
		defer s.Close()
		call := &spec.Call{Verb: verb, ContainerID: "c", NetNS: ns, IfName: "eth0", Path: []string{dir}, Config: conf}
		ctx := taken{t.Context(), path}
		if _, err := s.Invoke(ctx, "talker", call); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("it was not taken")
		}
	}
}

func sameErrors(t *testing.T, name string, a, b error) {
	t.Helper()
	var x, y *spec.Error
	if (a == nil) != (b == nil) || errors.As(a, &x) != errors.As(b, &y) {
		t.Errorf("%s:\nexec       %v\nin process %v", name, a, b)
		return
	}
	if x == nil {
		return
	}
	if strings.Contains(x.Msg, "panicked") {
		x.Details, y.Details = "", "" // the details name their origin
	}
	one, _ := json.Marshal(x)
	two, _ := json.Marshal(y)
	if string(one) != string(two) {
		t.Errorf("%s:\nexec       %s\nin process %s", name, one, two)
	}
}

// calls lists every verb in every version with every outcome, or, if the test draws few, every
// outcome in the newest version and two of them in the others. It also lists the calls that are
// refused before the plugin is called.
func calls(t *testing.T, ns string) (out []spec.Call) {
	for _, v := range append(spec.Versions(), "", "9.9.9", "x") {
		outcomes := []string{"", "coded", "wrapped", "plain", "joined", "undo", "panic"}
		if v != spec.Current && !draw.All(t) {
			outcomes = outcomes[:2]
		}
		for _, do := range outcomes {
			for _, verb := range []spec.Verb{spec.Add, spec.Del, spec.Check, spec.GC, spec.Status, spec.Version} {
				conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"talker","do":%q}`, v, do)
				out = append(out, spec.Call{Verb: verb, ContainerID: "c1", NetNS: ns, IfName: "eth0", Config: []byte(conf)})
			}
		}
	}
	good := spec.Call{Verb: spec.Add, ContainerID: "c1", NetNS: ns, IfName: "eth0", Config: []byte(`{"cniVersion":"1.0.0","name":"net"}`)}
	for _, change := range []func(*spec.Call){
		func(c *spec.Call) { c.ContainerID = "" },
		func(c *spec.Call) { c.ContainerID = "../x" },
		func(c *spec.Call) { c.IfName = "a/b" },
		func(c *spec.Call) { c.NetNS = "" },
		func(c *spec.Call) { c.NetNS = "/run/netns/none" },
		func(c *spec.Call) { c.NetNS = "/etc/hostname" },
		func(c *spec.Call) { c.NetNS = "/proc/thread-self/ns/net" },
		func(c *spec.Call) { c.NetNS, c.NetNSOverride = "/proc/thread-self/ns/net", true },
		func(c *spec.Call) { c.Verb = "NOSUCH" },
		func(c *spec.Call) { c.Config = nil },
		func(c *spec.Call) { c.Config = []byte(`{`) },
		func(c *spec.Call) { c.Verb, c.Config = spec.Version, []byte(`{`) },
		func(c *spec.Call) { c.Verb, c.Config = spec.Version, nil },
		func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.0.0"}`) },
		func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.0.0","name":"a/b"}`) },
		func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.0.0","name":"net","prevResult":{"ips":[{}]}}`) },
		func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.0.0","name":"net","prevResult":null,"do":1}`) },
	} {
		c := good
		change(&c)
		out = append(out, c)
	}
	return out
}
