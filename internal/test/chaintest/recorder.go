// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaintest

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

	"github.com/patchbay-net/patchbay/spec"
)

// Main is the TestMain of a package. If the test binary is started under a name that begins with "rec",
// it is a plugin. The plugin records its call and does what its configuration says.
func Main(m *testing.M) {
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

// Call is one call as a plugin saw it.
type Call struct {
	Plugin, Verb string
	Env          map[string]string
	Stdin        json.RawMessage
	Note         string
}

func recorder() int {
	r := Call{Plugin: filepath.Base(os.Args[0]), Verb: os.Getenv("CNI_COMMAND"), Env: map[string]string{}}
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

func (c *recConf) answer(r *Call) int {
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
func (c *recConf) result(r *Call) string {
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
func hang(r *Call) {
	child := exec.Command("sleep", "300")
	if err := child.Start(); err == nil {
		note(*r, fmt.Sprint(child.Process.Pid))
	}
	time.Sleep(5 * time.Minute)
}

func note(r Call, text string) {
	r.Note = text
	line, _ := json.Marshal(r)
	f, err := os.OpenFile(os.Getenv("RECORD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write(append(line, '\n'))
	_ = f.Close()
}
