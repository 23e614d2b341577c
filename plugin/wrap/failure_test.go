// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// TestCommandsThatFail checks, for every verb, which commands run after a failure.
func TestCommandsThatFail(t *testing.T) {
	for verb, want := range map[spec.Verb][2]string{
		spec.Add:    {"before", "before inner-ADD after inner-DEL"},
		spec.Check:  {"before", "before inner-CHECK after"},
		spec.Status: {"before", "before inner-STATUS after"},
		spec.Del:    {"before inner-DEL after", "before inner-DEL after"},
		spec.GC:     {"before inner-GC after", "before inner-GC after"},
	} {
		b := newBench(t)
		_, err := b.call(verb, b.around(verb, "echo no such luck >&2; exit 3", ""))
		if err == nil || !strings.Contains(err.Error(), "/before: exit status 3: no such luck") {
			t.Errorf("%s: %v", verb, err)
		}
		b.wantCalls(want[0])
		b = newBench(t)
		_, err = b.call(verb, b.around(verb, "", `echo '{"code":50,"msg":"not ready"}'; exit 1`))
		if err == nil || spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "/after: not ready") {
			t.Errorf("%s: code %d, %v", verb, spec.ErrorCode(err), err)
		}
		b.wantCalls(want[1])
	}
}

// TestDelTellsEverything checks that DEL reports every failure and runs every command.
func TestDelTellsEverything(t *testing.T) {
	b := newBench(t)
	b.fail[spec.Del] = errors.New("inner said no")
	_, err := b.call(spec.Del, b.around(spec.Del, "exit 3", "exit 4"))
	for _, part := range []string{"before: exit status 3", `wrapped plugin type="inner" failed (DEL): inner said no`, "after: exit status 4"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, without %q", err, part)
		}
	}
	b.wantCalls("before inner-DEL after")
}

// TestDelCallsThePlugin checks that DEL calls the plugin even if everything else failed.
func TestDelCallsThePlugin(t *testing.T) {
	for what, more := range map[string]string{
		"a patch with nothing to change":  `,"config":{"patch":[{"op":"remove","path":"/runtimeConfig/portMappings"}]}`,
		"a patch the library panics over": `,"config":{"patch":[{"op":"copy","from":"/own","path":"00/0"},{"op":"test","path":""}]}`,
		"another type":                    `,"around":7`,
		"a verb that is none":             `,"around":{"DELETE":{}}`,
		"a timeout":                       `,"timeout":"soon"`,
		"a program that is gone":          `,"around":{"DEL":{"before":[{"argv":["/gone"],"mayFail":true}]}}`,
	} {
		b := newBench(t)
		if _, err := b.call(spec.Del, innerConf+more); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		b.wantCalls("inner-DEL")
		b.has("standard error", b.stderr.String(), "patchbay: warning: DEL net c1/eth0: ")
	}
	b := newBench(t)
	if _, err := b.call(spec.Del, `,"plugin":{"type":"../x"}`); err == nil {
		t.Error("DEL of nobody knows what succeeds")
	}
}

func TestMayFail(t *testing.T) {
	b := newBench(t)
	if _, err := b.call(spec.Add, fmt.Sprintf(`%s,"around":{"ADD":{"before":[{"argv":[%q],"mayFail":true}]}}`, innerConf, b.script("before", "exit 3"))); err != nil {
		t.Error(err)
	}
	b.has("standard error", b.stderr.String(), "before: exit status 3")
	b.wantCalls("before inner-ADD")
}

// TestMayFailPatch lets a command with mayFail print a patch that cannot be applied. The result
// does not change.
func TestMayFailPatch(t *testing.T) {
	b := newBench(t)
	patch := b.script("patch", `echo '[{"op":"test","path":"/ips","value":[]}]'`)
	result, err := b.call(spec.Add, fmt.Sprintf(`%s,"around":{"ADD":{"after":[{"argv":[%q],"output":"patch","mayFail":true},{"argv":[%q]}]}}`, innerConf, patch, b.script("next", "")))
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Interfaces) != 1 || len(result.IPs) != 1 {
		t.Errorf("result: %+v", result)
	}
	b.has("standard error", b.stderr.String(), "patch: result of inner: apply patch")
	b.wantCalls("inner-ADD patch next")
}

func TestRetry(t *testing.T) {
	for _, tc := range []struct {
		code        spec.Code
		times, want int // how often inner fails, how often it is called
		err         bool
	}{
		{spec.CodeTryAgain, 2, 3, false},
		{spec.CodeTryAgain, 0, 4, true},
		{spec.CodeInternal, 0, 1, true},
		{spec.CodeNotAvailable, 0, 1, true},
	} {
		for _, verb := range []spec.Verb{spec.Add, spec.Status} {
			b := newBench(t)
			b.fail[verb], b.times = spec.Errorf(tc.code, "later"), tc.times
			_, err := b.call(verb, innerConf+`,"retry":{"times":3,"wait":"1ms"}`)
			if (err != nil) != tc.err || tc.err && spec.ErrorCode(err) != tc.code {
				t.Errorf("%+v: %v", tc, err)
			}
			b.wantCalls(strings.TrimSpace(strings.Repeat("inner-"+string(verb)+" ", tc.want)))
		}
	}
}

// TestTimeoutOfThePlugin lets a plugin exceed its timeout. The plugin may have done half of its
// work, so its DEL runs.
func TestTimeoutOfThePlugin(t *testing.T) {
	b := newBench(t)
	b.add = func(ctx context.Context, _ *plugin.Request) error { <-ctx.Done(); return ctx.Err() }
	_, err := b.call(spec.Add, innerConf+`,"timeout":"500ms"`)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "it took longer than 500ms") {
		t.Errorf("error: %v", err)
	}
	b.wantCalls("inner-ADD inner-DEL")
}

// TestTimeoutOfACommand checks that the processes that the command started are killed too.
func TestTimeoutOfACommand(t *testing.T) {
	pid := 0
	for limit := 100 * time.Millisecond; pid == 0; limit *= 3 { // a busy machine starts the command late
		pid = timeoutOfACommand(t, limit)
		if pid == 0 && limit > 20*time.Second {
			t.Fatal("the command does not start")
		}
	}
	for end := time.Now().Add(30 * time.Second); running(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d lives on", pid)
		}
	}
}

// timeoutOfACommand returns the process that a command with a timeout started, or 0.
func timeoutOfACommand(t *testing.T, limit time.Duration) int {
	t.Helper()
	b := newBench(t)
	slow := b.script("slow", "sleep 100 & echo $! >"+b.dir+"/pid; wait")
	start := time.Now()
	_, err := b.call(spec.Add, fmt.Sprintf(`%s,"around":{"ADD":{"after":[{"argv":[%q],"timeout":%q}]}}`, innerConf, slow, limit))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "slow: it took longer than "+limit.String()) || time.Since(start) > limit+30*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	data, err := os.ReadFile(b.dir + "/pid")
	if err != nil || len(data) == 0 {
		return 0
	}
	b.wantCalls("inner-ADD slow inner-DEL")
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func running(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestOutputIsLimited checks that a command's endless output does not fill memory, and that a
// daemon that a command started does not block the call.
func TestOutputIsLimited(t *testing.T) {
	b := newBench(t)
	_, err := b.call(spec.Add, b.around(spec.Add, "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; sleep 30 & true", ""))
	if err != nil {
		t.Error(err)
	}
	if n := b.stderr.Len(); n != mostLog {
		t.Errorf("standard error: %d bytes", n)
	}
	loud := b.script("loud", "head -c 3000000 /dev/zero >&2; exit 1")
	_, err = b.call(spec.Add, fmt.Sprintf(`%s,"around":{"ADD":{"before":[{"argv":[%q]}]}}`, innerConf, loud))
	if err == nil || len(err.Error()) > 2*mostQuoted {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
	long := b.script("long", "head -c 3000000 /dev/zero")
	_, err = b.call(spec.Add, fmt.Sprintf(`%s,"around":{"ADD":{"before":[{"argv":[%q],"output":"merge"}]}}`, innerConf, long))
	if err == nil || !strings.Contains(err.Error(), "its output is longer than 1048576 bytes") {
		t.Errorf("error: %v", err)
	}
}

// TestBadPatches checks that a bad patch, wherever it comes from, fails an ADD and leaves nothing.
func TestBadPatches(t *testing.T) {
	b := newBench(t)
	junk := b.script("junk", "echo oops")
	list := b.script("list", "echo '[]'")
	for more, want := range map[string]string{
		`,"config":{"patch":[{"op":"test","path":"/own/0","value":2}]}`:                    "configuration of inner: apply patch",
		`,"config":{"patch":[{"op":"replace","path":"","value":[]}]}`:                      "configuration of inner",
		`,"result":{"patch":[{"op":"remove","path":"/no"}]}`:                               "result of inner: apply patch",
		`,"result":{"merge":{"ips":[{"address":"10.0.0.300/24"}]}}`:                        "result of inner: decode result",
		`,"result":{"merge":{"ips":[{"address":"10.0.0.3/24","interface":9}]}}`:            "on interface 9, and there are 1 interfaces",
		fmt.Sprintf(`,"around":{"ADD":{"after":[{"argv":[%q],"output":"merge"}]}}`, junk):  `its output is no JSON: "oops\n"`,
		fmt.Sprintf(`,"around":{"ADD":{"before":[{"argv":[%q],"output":"merge"}]}}`, list): "merge must be an object",
		`,"config":{"patch":[{"op":"copy","from":"","path":"/a"},{"op":"x","path":"/a"}]}`: "unsupported operation",
	} {
		b.note("-")
		_, err := b.call(spec.Add, innerConf+more)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
		if last := b.recorded(); strings.HasSuffix(last, "inner-ADD") || strings.HasSuffix(last, "junk") {
			t.Errorf("%s: %s", more, last)
		}
	}
}
