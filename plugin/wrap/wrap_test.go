// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// bench is a place to wrap the plugin `inner`. inner records its calls, and the commands write
// into the same list.
type bench struct {
	t      *testing.T
	ns     string
	dir    string
	tape   string // a file, one line for each call
	config map[spec.Verb]string
	prev   map[spec.Verb]string
	fail   map[spec.Verb]error
	failed int // how often inner has failed
	times  int // how often it should fail; 0: always
	add    func(context.Context, *plugin.Request) error
	stderr bytes.Buffer
	dry    []string
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	return &bench{
		t: t, ns: nettest.NewNS(t, "wrap-"+filepath.Base(filepath.Dir(dir))+filepath.Base(dir)), dir: dir, tape: filepath.Join(dir, "tape"),
		config: map[spec.Verb]string{}, prev: map[spec.Verb]string{}, fail: map[spec.Verb]error{},
	}
}

func (b *bench) note(line string) {
	f, err := os.OpenFile(b.tape, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()       //nolint:errcheck // a test's
	fmt.Fprintln(f, line) //nolint:errcheck // a test's
}

// recorded returns the recorded calls in one line.
func (b *bench) recorded() string {
	data, err := os.ReadFile(b.tape)
	if err != nil {
		return ""
	}
	return strings.Join(strings.Split(strings.TrimSpace(string(data)), "\n"), " ")
}

// script writes a program that records its name and then does what body says.
func (b *bench) script(name, body string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	text := fmt.Sprintf("#!/bin/sh\necho %s >>%s\n%s\n", name, b.tape, body)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		b.t.Fatal(err)
	}
	return path
}

func (b *bench) record(_ context.Context, r *plugin.Request) error {
	b.note("inner-" + string(r.Verb))
	b.config[r.Verb] = string(r.Config)
	b.prev[r.Verb] = string(r.Head.PrevResult)
	if err := b.fail[r.Verb]; err != nil && (b.times == 0 || b.failed < b.times) {
		b.failed++
		return err
	}
	return nil
}

func (b *bench) inner() *plugin.Plugin {
	return &plugin.Plugin{
		Name: "inner", MinVersion: "0.4.0",
		Add: func(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
			if err := b.record(ctx, r); err != nil {
				return nil, err
			}
			if b.add != nil {
				if err := b.add(ctx, r); err != nil {
					return nil, err
				}
			}
			result := r.Prev()
			if result == nil {
				result = &spec.Result{}
			}
			result.Interfaces = append(result.Interfaces, spec.Interface{Name: "made", Sandbox: r.NetNS})
			index := len(result.Interfaces) - 1
			result.IPs = append(result.IPs, spec.IPConfig{Interface: &index, Address: netip.MustParsePrefix("10.0.0.2/24")})
			return result, nil
		},
		Del: b.record, Check: b.record, GC: b.record, Status: b.record,
	}
}

// call calls wrap around inner; more is the rest of the configuration.
func (b *bench) call(verb spec.Verb, more string, edit ...func(*spec.Call)) (*spec.Result, error) {
	b.t.Helper()
	return b.run(name, verb, `{"cniVersion":"1.1.0","name":"net","type":"wrap"`+more+`}`, edit...)
}

func (b *bench) run(pluginType string, verb spec.Verb, conf string, edit ...func(*spec.Call)) (*spec.Result, error) {
	b.t.Helper()
	builtin := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, b.inner()})
		s.Stderr = &b.stderr
		if b.dry != nil {
			s.Dry = func(line string) { b.dry = append(b.dry, line) }
		}
		return s
	}}
	c := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: []byte(conf), Args: "K8S_POD_NAME=web"}
	if c.PerContainer() {
		c.ContainerID, c.NetNS, c.IfName = "c1", b.ns, "eth0"
	}
	for _, e := range edit {
		e(c)
	}
	out, err := builtin.Invoke(context.Background(), pluginType, c)
	if err != nil || verb != spec.Add {
		return nil, err
	}
	return spec.ParseResult(out, "1.1.0")
}

func (b *bench) wantCalls(want string) {
	b.t.Helper()
	if got := b.recorded(); got != want {
		b.t.Errorf("calls: %s\nwant:  %s", got, want)
	}
}

func (b *bench) has(what, text, part string) {
	b.t.Helper()
	if !strings.Contains(text, part) {
		b.t.Errorf("%s is %s\nwithout %s", what, text, part)
	}
}

const innerConf = `,"plugin":{"type":"inner","own":[1,2]}`

// around is a configuration with one command before and after a verb.
func (b *bench) around(verb spec.Verb, before, after string) string {
	return fmt.Sprintf(`%s,"around":{%q:{"before":[{"argv":[%q]}],"after":[{"argv":[%q]}]}}`,
		innerConf, verb, b.script("before", before), b.script("after", after))
}

func TestEveryVerbReachesThePlugin(t *testing.T) {
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Status, spec.GC, spec.Del} {
		b := newBench(t)
		extra := `,"runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"a":1}},"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"before"}]}`
		if verb == spec.GC {
			extra += `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`
		}
		if _, err := b.call(verb, b.around(verb, "", "")+extra); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		b.wantCalls("before inner-" + string(verb) + " after")
		var conf map[string]json.RawMessage
		if err := json.Unmarshal([]byte(b.config[verb]), &conf); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{
			"name": `"net"`, "cniVersion": `"1.1.0"`, "type": `"inner"`, "own": `[1,2]`,
			"runtimeConfig": `{"mac":"02:00:00:00:00:01"}`, "args": `{"cni":{"a":1}}`,
		} {
			if string(conf[key]) != want {
				t.Errorf("%s: %s is %s, want %s", verb, key, conf[key], want)
			}
		}
		if verb == spec.GC {
			b.has("GC's configuration", b.config[verb], `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
		}
		if verb == spec.Check || verb == spec.Del {
			b.has("previous result", b.prev[verb], `"before"`)
		}
	}
}

func TestCapabilities(t *testing.T) {
	b := newBench(t)
	_, err := b.call(spec.Add, `,"plugin":{"type":"inner","capabilities":{"mac":true}},"runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["10.0.0.9/24"]}`)
	if err != nil {
		t.Fatal(err)
	}
	b.has("configuration", b.config[spec.Add], `"runtimeConfig":{"mac":"02:00:00:00:00:01"}`)
	if strings.Contains(b.config[spec.Add], "capabilities") {
		t.Errorf("capabilities are handed down: %s", b.config[spec.Add])
	}
}

// TestCommandsSeeWhatAPluginSees checks what a command gets: a plugin's environment, the
// configuration before the plugin, the result after it, and its arguments unchanged.
func TestCommandsSeeWhatAPluginSees(t *testing.T) {
	b := newBench(t)
	t.Setenv("CNI_IFNAME", "of the caller")
	dump := func(name string) string {
		return b.script(name, fmt.Sprintf(`cat >%[1]s/%[2]s.in; env >%[1]s/%[2]s.env; printf '%%s|' "$@" >%[1]s/%[2]s.args; echo said >&2`, b.dir, name))
	}
	conf := fmt.Sprintf(`%s,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"first"}]},"around":{"ADD":{"before":[{"argv":[%q,"$(id)","a b"]}],"after":[{"argv":[%q]}]}}`,
		innerConf, dump("one"), dump("two"))
	if _, err := b.call(spec.Add, conf); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(b.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, kv := range []string{"CNI_COMMAND=ADD\n", "CNI_CONTAINERID=c1\n", "CNI_IFNAME=eth0\n", "CNI_NETNS=" + b.ns + "\n", "CNI_ARGS=K8S_POD_NAME=web\n", "CNI_PATH=/nonexistent\n"} {
		b.has("environment", read("one.env"), kv)
	}
	b.has("standard input before", read("one.in"), `"own":[1,2]`)
	b.has("standard input before", read("one.in"), `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"first"}]}`)
	b.has("standard input after", read("two.in"), `"name": "made"`)
	b.has("arguments", read("one.args"), "$(id)|a b|")
	b.has("standard error", b.stderr.String(), "said\nsaid\n")
}

func TestPatches(t *testing.T) {
	b := newBench(t)
	before := b.script("before", `echo '{"computed": true}'`)
	after := b.script("after", `echo '[{"op": "replace", "path": "/ips/0/gateway", "value": "10.0.0.7"}]'`)
	result, err := b.call(spec.Add, fmt.Sprintf(`,"plugin":{"type":"inner","own":[1,2],"drop":1},
		"config":{"merge":{"drop":null,"mtu":1400,"name":"other","type":"loopback"},"patch":[{"op":"add","path":"/own/-","value":3}]},
		"result":{"merge":{"dns":{"domain":"x"}},"patch":[{"op":"add","path":"/ips/0/gateway","value":"10.0.0.1"}]},
		"around":{"ADD":{"before":[{"argv":[%q],"output":"merge"}],"after":[{"argv":[%q],"output":"patch"}]}}`, before, after))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"own":[1,2,3]`, `"mtu":1400`, `"computed":true`, `"name":"net"`, `"type":"inner"`} {
		b.has("configuration", b.config[spec.Add], part)
	}
	if strings.Contains(b.config[spec.Add], "drop") {
		t.Errorf("configuration: %s", b.config[spec.Add])
	}
	if result.DNS.Domain != "x" || result.IPs[0].Gateway.String() != "10.0.0.7" {
		t.Errorf("result: %+v", result)
	}
}
