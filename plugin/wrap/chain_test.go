// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/patchbay"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// chained calls `patchbay` with three members: a plugin that queues work, wrap around inner, and
// another plugin. flushed is how often the work was done, and lost how often it was discarded.
func (b *bench) chained(verb spec.Verb, more string) (queued, flushed, lost int, err error) {
	b.t.Helper()
	first := &plugin.Plugin{
		Name: "first",
		Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
			queued++
			b.note("first-ADD")
			return &spec.Result{Interfaces: []spec.Interface{{Name: "first"}}}, nil
		},
		Del: func(context.Context, *plugin.Request) error { b.note("first-DEL"); return nil },
	}
	in := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&patchbay.Plugin, &Plugin, first, b.inner()})
		s.Stderr = &b.stderr
		s.OnDiscard(func() { lost, queued = lost+queued, 0 })
		s.OnFlush(func(context.Context) error {
			if queued > 0 {
				b.note("flush")
				flushed, queued = flushed+queued, 0
			}
			return nil
		})
		return s
	}}
	c := &spec.Call{Verb: verb, ContainerID: "c1", NetNS: b.ns, IfName: "eth0", Path: []string{"/nonexistent"}}
	c.Config = []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"patchbay","runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"a":1}},
		"plugins":[{"type":"first"},{"type":"wrap","capabilities":{"mac":true}%s}]}`, more))
	_, err = in.Invoke(context.Background(), "patchbay", c)
	return queued, flushed, lost, err
}

// TestWithinPatchbay checks that there is one transaction, and that it is done before a command
// can look.
func TestWithinPatchbay(t *testing.T) {
	b := newBench(t)
	_, flushed, _, err := b.chained(spec.Add, innerConf)
	if err != nil || flushed != 1 {
		t.Errorf("flushed %d, %v", flushed, err)
	}
	b.wantCalls("first-ADD inner-ADD flush")
	b.has("configuration", b.config[spec.Add], `"runtimeConfig":{"mac":"02:00:00:00:00:01"}`)
	b.has("configuration", b.config[spec.Add], `"args":{"cni":{"a":1}}`)

	b = newBench(t)
	if _, _, _, err := b.chained(spec.Add, b.around(spec.Add, "cat >"+b.dir+"/in", "")); err != nil {
		t.Error(err)
	}
	b.wantCalls("first-ADD before inner-ADD flush after")
	stdin, err := os.ReadFile(b.dir + "/in")
	if err != nil || !bytes.Contains(stdin, []byte(`"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"first"}]}`)) {
		t.Errorf("%v: the command before does not see the previous result: %s", err, stdin)
	}

	b = newBench(t)
	if _, _, _, err := b.chained(spec.Add, b.around(spec.Add, "", "exit 1")); err == nil {
		t.Error("ADD succeeds")
	}
	b.wantCalls("first-ADD before inner-ADD flush after inner-DEL first-DEL")
}

// TestRetryWithinPatchbay checks that a failed try does not discard what earlier members have queued.
func TestRetryWithinPatchbay(t *testing.T) {
	b := newBench(t)
	b.fail[spec.Add], b.times = spec.Errorf(spec.CodeTryAgain, "later"), 1
	_, flushed, lost, err := b.chained(spec.Add, innerConf+`,"retry":{"times":1,"wait":"1ms"}`)
	if err != nil || flushed != 1 || lost != 0 {
		t.Errorf("flushed %d, lost %d, %v", flushed, lost, err)
	}
	b.wantCalls("first-ADD flush inner-ADD inner-ADD")
}

// TestExplain checks that explain writes down what would run.
func TestExplain(t *testing.T) {
	b := newBench(t)
	b.dry = []string{}
	if _, err := b.call(spec.Add, b.around(spec.Add, "", "")); err != nil {
		t.Fatal(err)
	}
	want := "host: run " + b.dir + "/before\nhost: run " + b.dir + "/after"
	if got := strings.Join(b.dry, "\n"); got != want {
		t.Errorf("explain:\n%s\nwant:\n%s", got, want)
	}
	b.wantCalls("inner-ADD")
}

// TestVersion sends a VERSION that names the wrapped plugin. The answer has that plugin's versions.
func TestVersion(t *testing.T) {
	for config, want := range map[string]string{
		`{"cniVersion":"1.1.0"}`:                                                    strings.Join(spec.Versions(), " "),
		`{"cniVersion":"1.1.0","plugin":{"type":"inner"}}`:                          strings.Join(spec.VersionsFrom("0.4.0"), " "),
		`{"cniVersion":"1.1.0","plugin":{"type":"absent"}}`:                         strings.Join(spec.Versions(), " "),
		`{"cniVersion":"1.1.0","plugin":"x"}`:                                       strings.Join(spec.Versions(), " "),
		`{"cniVersion":"1.1.0","plugin":{"type":"wrap","plugin":{"type":"inner"}}}`: strings.Join(spec.VersionsFrom("0.4.0"), " "),
	} {
		b := newBench(t)
		in := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{&Plugin, b.inner()}) }}
		out, err := in.Invoke(t.Context(), name, &spec.Call{Verb: spec.Version, Path: []string{"/nonexistent"}, Config: []byte(config)})
		var got struct{ SupportedVersions []string }
		if err != nil || json.Unmarshal(out, &got) != nil || strings.Join(got.SupportedVersions, " ") != want {
			t.Errorf("%s: %s, %v; want %s", config, out, err, want)
		}
	}
	b := newBench(t)
	old := func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"0.3.1","name":"net","plugin":{"type":"inner"}}`) }
	if _, err := b.call(spec.Add, "", old); spec.ErrorCode(err) != spec.CodeIncompatibleVersion {
		t.Errorf("ADD in a version that inner does not speak: %v", err)
	}
}

// foreign writes a plugin in shell into a directory for CNI_PATH. wrap runs by exec too.
func (b *bench) foreign(body string) (path []string) {
	b.t.Helper()
	dir := b.t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\necho foreign-$CNI_COMMAND >>%s\n%s\n", b.tape, body)
	if err := os.WriteFile(filepath.Join(dir, "foreign"), []byte(text), 0o700); err != nil {
		b.t.Fatal(err)
	}
	return []string{dir, plugintest.Install(b.t, &Plugin)}
}

func (b *bench) exec(verb spec.Verb, path []string, more string) ([]byte, error) {
	conf := `{"cniVersion":"1.1.0","name":"net","type":"wrap","plugin":{"type":"foreign"}` + more + `}`
	call := &spec.Call{Verb: verb, ContainerID: "c1", NetNS: b.ns, IfName: "eth0", Path: path, Config: []byte(conf)}
	return (&invoke.Exec{Stderr: &b.stderr}).Invoke(context.Background(), name, call)
}

// TestForeignPlugin runs a plugin by exec and checks its result, its error object and its
// standard error. It also tests output that a plugin must not print.
func TestForeignPlugin(t *testing.T) {
	b := newBench(t)
	path := b.foreign(`[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","interfaces":[{"name":"x"}]}'; echo hello >&2; true`)
	out, err := b.exec(spec.Add, path, `,"result":{"merge":{"dns":{"domain":"d"}}}`)
	if err != nil || !strings.Contains(string(out), `"domain": "d"`) || !strings.Contains(string(out), `"name": "x"`) {
		t.Errorf("%v: %s", err, out)
	}
	b.has("standard error", b.stderr.String(), "hello\n")
	for _, verb := range []spec.Verb{spec.Check, spec.Del, spec.Status, spec.GC} {
		if out, err := b.exec(verb, path, ""); err != nil || len(out) > 0 {
			t.Errorf("%s: %v, %q", verb, err, out)
		}
	}
	b.wantCalls("foreign-ADD foreign-CHECK foreign-DEL foreign-STATUS foreign-GC")
	for body, want := range map[string]string{
		`echo '{"code":11,"msg":"later"}'; exit 1`:                                      `wrapped plugin type="foreign" failed (ADD): later`,
		`echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24","interface":4}]}'`: "on interface 4, and there are 0 interfaces",
		`echo nonsense`:                 "decode result",
		`echo '{"cniVersion":"9.0.0"}'`: "unsupported CNI result version",
	} {
		_, err := b.exec(spec.Add, b.foreign(body), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
		if undone := strings.HasSuffix(b.recorded(), "foreign-DEL"); undone == strings.Contains(body, "exit 1") {
			t.Errorf("%s: %s", body, b.recorded())
		}
	}
}

// TestForeignPluginTakesTooLong lets a plugin exceed its timeout. It is killed, and its DEL
// reverts what it may have done.
func TestForeignPluginTakesTooLong(t *testing.T) {
	b := newBench(t)
	path := b.foreign(`[ $CNI_COMMAND = DEL ] || sleep 100`)
	const both = "foreign-ADD foreign-DEL"
	for limit := 300 * time.Millisecond; limit < time.Minute; limit *= 4 { // a busy machine starts the plugin late
		_ = os.Remove(b.tape)
		_, err := b.exec(spec.Add, path, fmt.Sprintf(`,"timeout":%q`, limit))
		if err == nil || !strings.Contains(err.Error(), "it took longer than "+limit.String()) {
			t.Errorf("error: %v", err)
		}
		if b.recorded() == both {
			break
		}
	}
	b.wantCalls(both)
}

// TestLog checks that the log has a line for each step, and no configuration or result.
func TestLog(t *testing.T) {
	b := newBench(t)
	b.fail[spec.Add] = spec.Errorf(spec.CodeTryAgain, "later")
	path := filepath.Join(b.dir, "log")
	if _, err := b.call(spec.Add, fmt.Sprintf(`%s,"log":%q,"retry":{"times":1,"wait":"1ms"}`, b.around(spec.Add, "", ""), path)); err == nil {
		t.Fatal("ADD succeeds")
	}
	data, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(data), "own") {
		t.Fatalf("%v: %s", err, data)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var s step
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(s.Verb, " ", s.Network, "/", s.ContainerID, "/", s.IfName, " ", s.Step, " ", filepath.Base(s.Name), " ", uint(s.Code), " ", s.Error))
	}
	want := "ADD net/c1/eth0 before before 0 \nADD net/c1/eth0 plugin inner 11 later\nADD net/c1/eth0 plugin inner 11 later"
	if strings.Join(got, "\n") != want {
		t.Errorf("log:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("log: %v, %v", fi.Mode(), err)
	}
	link := filepath.Join(b.dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	b.fail = map[spec.Verb]error{}
	if _, err := b.call(spec.Add, fmt.Sprintf(`%s,"log":%q`, innerConf, link)); err != nil {
		t.Errorf("a log that cannot be written ends an ADD: %v", err)
	}
	b.has("standard error", b.stderr.String(), "write log: ")
}

// TestKilled kills wrap while a command runs. The command ends too.
func TestKilled(t *testing.T) {
	b := newBench(t)
	path := b.foreign(`echo '{"cniVersion":"1.1.0"}'`)
	slow := b.script("slow", "echo $$ >"+b.dir+"/new; mv "+b.dir+"/new "+b.dir+"/pid; exec sleep 100")
	ctx, cancel := context.WithCancel(t.Context())
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","plugin":{"type":"foreign"},"around":{"ADD":{"after":[{"argv":[%q],"timeout":"1m"}]}}}`, slow)
	call := &spec.Call{Verb: spec.Add, ContainerID: "c1", NetNS: b.ns, IfName: "eth0", Path: path, Config: []byte(conf)}
	done := make(chan error)
	go func() {
		_, err := (&invoke.Exec{}).Invoke(ctx, name, call)
		done <- err
	}()
	var pid int
	for end := time.Now().Add(time.Minute); pid == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(b.dir + "/pid"); err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		}
	}
	cancel() // kills wrap's process group; the command has another group
	if err := <-done; err == nil || pid == 0 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	for end := time.Now().Add(30 * time.Second); running(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d lives on", pid)
		}
	}
}
