// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// wrongEnv names the wrong plugin that TestWrongPlugin tests.
const wrongEnv = "PATCHBAY_TEST_WRONG"

// wrongPlugin breaks one rule. It stands before a right plugin, and changes its calls or its answers.
type wrongPlugin struct {
	about   string
	subject string
	test    string // the test that must find it: a script, also with a version before it, or a refusal
	says    string // in the report
	answer  answerFunc
}

// right is the right plugin behind a wrong one.
type right struct {
	invoke.Invoker
	mu    sync.Mutex // of what follows
	ctx   context.Context
	name  string
	added []*spec.Call // the ADDs that succeeded
	calls map[spec.Verb]int
}

func (p *right) do(call *spec.Call) ([]byte, error) {
	out, err := p.Invoke(p.ctx, p.name, call)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && call.Verb == spec.Add {
		p.added = append(p.added, call)
	}
	return out, err
}

// as makes a call with another verb.
func (p *right) as(verb spec.Verb, call *spec.Call) ([]byte, error) {
	other := *call
	other.Verb = verb
	return p.do(&other)
}

// wrongInvoker calls a wrong plugin.
type wrongInvoker struct {
	right
	answer answerFunc
}

func (w *wrongInvoker) Invoke(ctx context.Context, name string, call *spec.Call) ([]byte, error) {
	w.mu.Lock()
	w.ctx, w.name = ctx, name
	w.calls[call.Verb]++
	w.mu.Unlock()
	return w.answer(&w.right, call)
}

// Around returns the right plugin's invoker: a wrong plugin is a program if the right one is.
func (w *wrongInvoker) Around() invoke.Invoker { return w.Invoker }

// TestWrongPlugin is the test that TestWrongPlugins runs in a process of its own.
func TestWrongPlugin(t *testing.T) {
	for _, w := range wrongPlugins() {
		if w.about != os.Getenv(wrongEnv) {
			continue
		}
		s, err := Named(w.subject)
		if err != nil {
			t.Fatal(err)
		}
		inv := &wrongInvoker{right: right{Invoker: &invoke.Exec{Stderr: testLog{t}}, calls: map[spec.Verb]int{}}, answer: w.answer}
		Suite{Subject: *s, Invoker: inv, Path: []string{*pluginsDir}}.Run(t)
	}
}

// The suite finds each wrong plugin by the test of the rule that the plugin breaks, and says what is wrong.
// There is one for each script.
func TestWrongPlugins(t *testing.T) {
	dir := reftest.Ours(t)
	scripts, err := fs.Glob(Contract(), "*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrongPlugins() {
		t.Run(w.about, func(t *testing.T) {
			t.Parallel()
			found(t, dir, w)
		})
		script := filepath.Base(w.test) + ".txtar"
		scripts = slices.DeleteFunc(scripts, func(s string) bool { return s == script })
	}
	if len(scripts) > 0 {
		t.Errorf("no wrong plugin breaks the rule of %v", scripts)
	}
}

func found(t *testing.T, dir string, w wrongPlugin) {
	t.Helper()
	report, err := w.run(dir, "^TestWrongPlugin$/^"+strings.ReplaceAll(regexp.QuoteMeta(w.test), "/", "$/^")+"$")
	if err == nil || !strings.Contains(report, "--- FAIL: TestWrongPlugin/"+w.test+" (") || strings.Contains(report, "panic:") {
		t.Fatalf("%s does not find it: %v\n%s", w.test, err, report)
	}
	if !strings.Contains(report, w.says) {
		t.Errorf("the report does not say %q:\n%s", w.says, report)
	}
}

// run runs tests of a wrong plugin in a process with namespaces of its own, because it leaves things.
func (w *wrongPlugin) run(dir, tests string) (report string, err error) {
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run="+tests, "-plugins="+dir, "-settle=200ms")
	cmd.Env = append(os.Environ(), wrongEnv+"="+w.about, "PATCHBAY_NETTEST=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// aloneFile lists the wrong plugins that one rule finds and no other. The others break more: a DEL that does nothing is found by each
// rule that calls DEL.
const aloneFile = "testdata/alone.txt"

// Each wrong plugin of testdata/alone.txt is found by its rule and by no other. In `make test` a few of them run.
func TestFoundByNoOtherRule(t *testing.T) {
	dir := reftest.Ours(t)
	data, err := os.ReadFile(aloneFile)
	if err != nil {
		t.Fatal(err)
	}
	alone := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i, about := range alone {
		if i%5 != 0 && !draw.All(t) {
			continue
		}
		at := slices.IndexFunc(wrongPlugins(), func(w wrongPlugin) bool { return w.about == about })
		if at < 0 {
			t.Fatalf("%s: no wrong plugin is %q", aloneFile, about)
		}
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			w := wrongPlugins()[at]
			if got := w.finders(dir); !slices.Equal(got, []string{path.Base(w.test)}) {
				t.Errorf("it is found by %q, want %s and no other", got, w.test)
			}
		})
	}
}

// finders returns the rules that find a wrong plugin.
func (w *wrongPlugin) finders(dir string) (rules []string) {
	report, _ := w.run(dir, "^TestWrongPlugin$") // it fails
	versions := regexp.MustCompile(`^[0-9.]+$`)
	for _, m := range regexp.MustCompile(`(?m)^ *--- FAIL: TestWrongPlugin/(?:\S+/)?(\S+) \(`).FindAllStringSubmatch(report, -1) {
		if !versions.MatchString(m[1]) {
			rules = append(rules, m[1])
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}
