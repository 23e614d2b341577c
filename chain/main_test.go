// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/draw"
)

// If the test binary is started under a name that begins with "rec", it is a plugin. The plugin
// records its call and does what its configuration says.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "rec") {
		os.Exit(recorder())
	}
	os.Exit(m.Run())
}

// recConf is the recorder's configuration.
type recConf struct {
	Fail       map[string]spec.Error `json:"fail"`   // the error object that each verb prints
	Output     map[string]string     `json:"output"` // the standard output of each verb
	Hang       string                `json:"hang"`   // the verb that never ends; its child process does not end either
	Hold       string                `json:"hold"`   // the verb that takes 50 ms and records its beginning and end
	Until      string                `json:"until"`  // Hold waits for this file instead of 50 ms
	Version    string                `json:"cniVersion"`
	PrevResult json.RawMessage       `json:"prevResult"`
}

// record is one call as a plugin saw it.
type record struct {
	Plugin, Verb string
	Env          map[string]string
	Stdin        json.RawMessage
	Note         string
}

func recorder() int {
	r := record{Plugin: filepath.Base(os.Args[0]), Verb: os.Getenv("CNI_COMMAND"), Env: map[string]string{}}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(k, "CNI_") || k == "TRACEPARENT" || k == "TRACESTATE" || k == "BAGGAGE" {
			r.Env[k] = v
		}
	}
	r.Stdin, _ = io.ReadAll(os.Stdin)
	var c recConf
	if err := json.Unmarshal(r.Stdin, &c); err != nil {
		fmt.Printf(`{"code":6,"msg":%q}`, err)
		return 1
	}
	if c.Hold == r.Verb {
		note(r, "begin")
		c.wait()
		r.Note = "end"
	}
	note(r, r.Note)
	return c.answer(&r)
}

func (c *recConf) wait() {
	time.Sleep(50 * time.Millisecond)
	for c.Until != "" {
		if _, err := os.Stat(c.Until); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *recConf) answer(r *record) int {
	if c.Hang == r.Verb {
		hang(r)
	}
	if e, ok := c.Fail[r.Verb]; ok {
		_ = json.NewEncoder(os.Stdout).Encode(&e)
		return 1
	}
	switch out, ok := c.Output[r.Verb]; {
	case ok:
		fmt.Print(out)
	case r.Verb == "VERSION":
		fmt.Printf(`{"cniVersion":%q,"supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`, c.Version)
	case r.Verb == "ADD":
		fmt.Print(c.result(r))
	}
	return 0
}

// result adds an interface named after the plugin to the previous result.
func (c *recConf) result(r *record) string {
	if len(c.PrevResult) == 0 {
		if strings.HasPrefix(c.Version, "0.1") || strings.HasPrefix(c.Version, "0.2") || c.Version == "" {
			return `{"ip4":{"ip":"10.7.0.2/24","gateway":"10.7.0.1"}}`
		}
		return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":%q,"sandbox":%q}],"ips":[{"version":"4","interface":0,"address":"10.7.0.2/24"}]}`,
			c.Version, r.Plugin, r.Env["CNI_NETNS"])
	}
	var prev map[string]any
	_ = json.Unmarshal(c.PrevResult, &prev)
	if list, ok := prev["interfaces"].([]any); ok {
		prev["interfaces"] = append(list, map[string]any{"name": r.Plugin})
	}
	out, _ := json.Marshal(prev)
	return string(out)
}

// hang starts a child that outlives its parent unless the whole process group is killed. It
// writes the child's pid into a file and waits.
func hang(r *record) {
	child := exec.Command("sleep", "300")
	if err := child.Start(); err == nil {
		note(*r, fmt.Sprint(child.Process.Pid))
	}
	time.Sleep(5 * time.Minute)
}

func note(r record, text string) {
	r.Note = text
	line, _ := json.Marshal(r)
	f, err := os.OpenFile(os.Getenv("RECORD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write(append(line, '\n'))
	_ = f.Close()
}

// bench is a runtime with its own directories, whose plugins are recorders.
type bench struct {
	*chain.Runtime
	t      *testing.T
	log    string
	events []chain.Event
	warned []error
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, log: filepath.Join(dir, "log")}
	t.Setenv("RECORD", b.log)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rec1", "rec2", "rec3"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.Runtime = &chain.Runtime{
		Path: []string{bin}, ConfDir: filepath.Join(dir, "conf"), CacheDir: filepath.Join(dir, "cache"), RunDir: filepath.Join(dir, "run"),
		Event: func(e chain.Event) { b.events = append(b.events, e) },
		Warn:  func(err error) { b.warned = append(b.warned, err) },
	}
	return b
}

// calls reads what the recorders wrote since the last call.
func (b *bench) calls() (out []record) {
	b.t.Helper()
	data, err := os.ReadFile(b.log)
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	_ = os.Remove(b.log)
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// order is "VERB plugin" of each call.
func order(calls []record) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.Verb+" "+c.Plugin)
	}
	return strings.Join(words, ", ")
}

func mustList(t *testing.T, data string) *chain.List {
	t.Helper()
	l, err := chain.ParseList([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// versions returns the versions of the specification in which a runtime does something else, and with
// PATCHBAY_DRAW=all those that differ from one of these in a name only.
func versions(t *testing.T) []string {
	t.Helper()
	if draw.All(t) {
		return spec.Versions()
	}
	return []string{"0.2.0", "0.3.1", "0.4.0", "1.1.0"}
}

var attachment = chain.Attachment{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}

const three = `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1"},{"type":"rec2"},{"type":"rec3"}]}`

// failing is a list of three plugins. Plugin number n fails the verb.
func failing(verb string, n int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","plugins":[%s]}`, strings.Join([]string{
		member(1, n, verb), member(2, n, verb), member(3, n, verb),
	}, ","))
}

func member(i, n int, verb string) string {
	if i != n && n != 0 {
		return fmt.Sprintf(`{"type":"rec%d"}`, i)
	}
	return fmt.Sprintf(`{"type":"rec%d","fail":{%q:{"code":11,"msg":"not now %d"}}}`, i, verb, i)
}
