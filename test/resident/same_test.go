// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/invoke"
)

const answer = `#!/bin/sh
cat > "$ANSWER_DIR/stdin"; env | sort > "$ANSWER_DIR/env"; ulimit -Sn > "$ANSWER_DIR/files"; pwd > "$ANSWER_DIR/pwd"
echo "a word to standard error" >&2
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.9/16","gateway":"10.99.0.1"}]}'
exit 0`

// TestSame compares what a runtime sees of calls, most of them wrong, without and with a server.
func TestSame(t *testing.T) {
	dir := install(t)
	ns := nettest.NewNS(t, "same")
	long := `{"cniVersion":"1.0.0","name":"res","type":"static","pad":"` + strings.Repeat("x", 100<<10) + `"}`
	calls := []call{
		{plugin: "bridge", verb: "VERSION", input: `{"cniVersion":"1.0.0"}`},
		{plugin: "bridge", verb: "VERSION"},
		{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("host-local")}, // again
		{plugin: "bridge", verb: "CHECK", id: "c", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "DEL", id: "c", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "DEL", id: "c", input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "c", netns: "/nowhere", input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "c", netns: "/proc/self/ns/net", input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "../c", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: "{"},
		{plugin: "bridge", verb: "ADD", id: "c", netns: ns},
		{plugin: "bridge", verb: "ADD", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("nothing")},
		{plugin: "bridge", verb: "TEA", id: "c", netns: ns, input: bridgeConf("host-local")},
		{plugin: "bridge", input: bridgeConf("host-local")},
		{plugin: "patchbay", input: ""},
		{plugin: "bridge", verb: "STATUS", input: strings.Replace(bridgeConf("host-local"), "1.0.0", "1.1.0", 1)},
		{plugin: "bridge", verb: "GC", input: strings.Replace(bridgeConf("host-local"), "1.0.0", "1.1.0", 1)},
		{plugin: "static", verb: "ADD", id: "c", netns: ns, input: long},
		{plugin: "portmap", verb: "ADD", id: "c", netns: ns, input: `{"cniVersion":"1.0.0","name":"res","type":"portmap"}`},
		{plugin: "loopback", verb: "ADD", id: "c", netns: ns, input: `{"cniVersion":"1.0.0","name":"res","type":"loopback"}`},
		{plugin: "loopback", verb: "ADD", id: "c", netns: ns, input: `{"cniVersion":"1.0.0","name":"res","type":"loopback","path":"\u002fproc\u002fself\u002ffd\u002f0"}`},
	}
	var alone []outcome
	for _, c := range calls {
		alone = append(alone, c.run(t, dir))
	}
	s := serve(t, dir)
	for i, c := range calls {
		if got := c.run(t, dir); same(got) != same(alone[i]) {
			t.Errorf("%s %s %.60s: %+v, want %+v", c.plugin, c.verb, c.input, got, alone[i])
		}
	}
	if ran, want := s.stop(t), len(calls)-5; ran != want { // two calls have no verb, one is too long, two may name a descriptor
		t.Errorf("the server ran %d calls, want %d\n%s", ran, want, s.said())
	}
	if _, err := os.Lstat("/run/patchbay/plugins.sock"); err == nil {
		t.Error("the socket is still there")
	}
}

// same removes from an outcome what differs from ADD to ADD: MAC addresses, and host-local's next address.
func same(o outcome) outcome {
	var lines []string
	for line := range strings.Lines(o.stdout) {
		if !strings.Contains(line, `"mac":`) && !strings.Contains(line, `"address":`) {
			lines = append(lines, line)
		}
	}
	o.stdout = strings.Join(lines, "")
	return o
}

// TestEnvironment checks what a program that a plugin executes gets, without and with a server.
func TestEnvironment(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "env"), leak.Must(t)
	script(t, filepath.Join(dir, "foreign"), answer)
	conf := bridgeConf("foreign")
	seen := func() (files map[string]string) {
		files = map[string]string{}
		out := t.TempDir()
		for _, verb := range []string{"ADD", "DEL"} {
			c := call{plugin: "bridge", verb: verb, id: "c", netns: ns, input: conf, env: []string{"ANSWER_DIR=" + out, "TEA=green"}, shell: `ulimit -Sn 512; exec "$0"`}
			o := c.run(t, dir)
			if o.code != 0 || o.stderr != "a word to standard error\n" {
				t.Fatalf("%+v", o)
			}
		}
		for _, name := range []string{"stdin", "env", "files", "pwd"} {
			text, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = strings.ReplaceAll(string(text), out, "OUT")
		}
		return files
	}
	alone := seen()
	if alone["files"] != "512\n" || strings.Contains(alone["env"], "GOMAXPROCS") {
		t.Errorf("the start of Go has left %q and %q", alone["files"], alone["env"])
	}
	s := serve(t, dir)
	with := seen()
	for name, text := range alone {
		if name != "files" && with[name] != text { // the server's own limit counts
			t.Errorf("%s: %q, want %q", name, with[name], text)
		}
	}
	if ran := s.stop(t); ran != 2 {
		t.Errorf("the server ran %d calls\n%s", ran, s.said())
	}
	leak.NoLeaks(t, before)
}

// TestProcs checks that a caller's GOMAXPROCS stays.
func TestProcs(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "procs")
	script(t, filepath.Join(dir, "foreign"), `env | grep GOMAXPROCS >&2; [ "$CNI_COMMAND" = DEL ] || exit 1`)
	o := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("foreign"), env: []string{"GOMAXPROCS=3"}}.run(t, dir)
	if !strings.Contains(o.stdout, "GOMAXPROCS=3") {
		t.Errorf("%+v", o)
	}
}

// TestLarge hands over a result that is longer than the kernel's default for a packet.
func TestLarge(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "large")
	var routes strings.Builder
	for range 1300 {
		routes.WriteString(`,{"dst":"10.0.0.0/8","gw":"10.99.0.1"}`)
	}
	conf := `{"cniVersion":"1.0.0","name":"res","type":"tuning","prevResult":{"cniVersion":"1.0.0","ips":[],"routes":[{"dst":"0.0.0.0/0"}` + routes.String() + `]}}`
	c := call{plugin: "tuning", verb: "ADD", id: "c", netns: ns, input: conf}
	alone := c.run(t, dir)
	serve(t, dir)
	c.shell = noGo
	if with := c.run(t, dir); with != alone || alone.code != 0 || len(alone.stdout) < 100<<10 {
		t.Errorf("%d bytes, code %d; want %d bytes, code %d: %.300s", len(with.stdout), with.code, len(alone.stdout), alone.code, with.stderr)
	}
}

// TestContract runs the contract of plugins on calls that are handed over, in `make test` for some plugins and
// with a few of its scripts.
func TestContract(t *testing.T) {
	dir := install(t)
	s := serve(t, dir)
	plugins := []string{"bridge", "host-local", "tuning", "patchbay", "loopback"}
	if draw.All(t) {
		plugins = append(plugins, "ptp", "portmap", "firewall")
	}
	for _, name := range plugins {
		subject, err := conformance.Named(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			suite := conformance.Suite{Subject: *subject, Invoker: &invoke.Exec{Stderr: t.Output()}, Path: []string{dir}}
			if !draw.All(t) {
				suite = suite.Brief()
			}
			suite.Run(t)
		})
	}
	if ran := s.stop(t); ran < 100 {
		t.Errorf("the server ran %d calls\n%s", ran, s.said())
	}
}
