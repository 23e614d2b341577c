// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestAddPassesResults(t *testing.T) {
	b := newBench(t)
	result, err := b.Add(t.Context(), chaintest.List(t, three), attachment)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Interfaces) != 3 || result.Interfaces[2].Name != "rec3" {
		t.Errorf("result is %+v", result)
	}
	calls := b.Calls()
	if got := chaintest.Order(calls); got != "ADD rec1, ADD rec2, ADD rec3" {
		t.Errorf("calls: %s", got)
	}
	for i, want := range []int{0, 1, 2} {
		var in struct{ PrevResult *spec.Result }
		if err := json.Unmarshal(calls[i].Stdin, &in); err != nil {
			t.Fatal(err)
		}
		switch {
		case want == 0 && in.PrevResult != nil:
			t.Error("the first plugin has a previous result (R12)")
		case want > 0 && len(in.PrevResult.Interfaces) != want:
			t.Errorf("plugin %d: prevResult is %+v", i+1, in.PrevResult)
		}
	}
	if len(b.Events) != 3 || b.Events[1].Plugin != "rec2" || b.Events[1].Outcome() != "ok" || b.Events[1].Duration <= 0 || b.Events[1].Output == 0 {
		t.Errorf("events: %+v", b.Events)
	}
	if got := b.Cached(); got != "net-c1-eth0" {
		t.Errorf("cached: %q", got)
	}
}

func TestAddRollsBack(t *testing.T) {
	b := newBench(t)
	_, err := b.Add(t.Context(), chaintest.List(t, failing("ADD", 2)), attachment)
	if err == nil || !strings.Contains(err.Error(), `plugin type="rec2" failed (add): not now 2`) {
		t.Errorf("error is %v", err)
	}
	if code := spec.ErrorCode(err); code != spec.CodeTryAgain {
		t.Errorf("code is %d", code)
	}
	calls := b.Calls()
	if got := chaintest.Order(calls); got != "ADD rec1, ADD rec2, DEL rec3, DEL rec2, DEL rec1" {
		t.Errorf("calls: %s", got)
	}
	if !strings.Contains(string(calls[4].Stdin), `"prevResult"`) {
		t.Errorf("the rollback has no result: %s", calls[4].Stdin)
	}
	if last := b.Events[len(b.Events)-1]; !last.Rollback || last.Verb != spec.Del {
		t.Errorf("last event: %+v", last)
	}
	if got := b.Cached(); got != "" {
		t.Errorf("cached: %q", got)
	}
}

func TestAddNoRollback(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithNoRollback())
	if _, err := b.Add(t.Context(), chaintest.List(t, failing("ADD", 2)), attachment); err == nil {
		t.Error("no error")
	}
	if got := chaintest.Order(b.Calls()); got != "ADD rec1, ADD rec2" {
		t.Errorf("calls: %s", got)
	}
}

// A second ADD that fails must not remove what the first ADD made.
func TestAddAgainKeepsTheFirst(t *testing.T) {
	b := newBench(t)
	if _, err := b.Add(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	if _, err := b.Add(t.Context(), chaintest.List(t, failing("ADD", 1)), attachment); err == nil {
		t.Error("no error")
	}
	if got := chaintest.Order(b.Calls()); got != "ADD rec1" {
		t.Errorf("calls: %s", got)
	}
	if got := b.Cached(); got != "net-c1-eth0" {
		t.Errorf("cached: %q", got)
	}
}

func TestAddCacheFails(t *testing.T) {
	b := newBench(t)
	if err := os.MkdirAll(b.CacheDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.CacheDir, "results"), nil, 0o600); err != nil { // a file in the place of the directory
		t.Fatal(err)
	}
	_, err := b.Add(t.Context(), chaintest.List(t, three), attachment)
	if err == nil || !strings.Contains(err.Error(), `failed to set network "net" cached result`) {
		t.Errorf("error is %v", err)
	}
	if got := chaintest.Order(b.Calls()); !strings.HasSuffix(got, "DEL rec3, DEL rec2, DEL rec1") {
		t.Errorf("calls: %s", got)
	}
}

func TestRollbackError(t *testing.T) {
	b := newBench(t)
	_, err := b.Add(t.Context(), chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[
		{"type":"rec1","fail":{"DEL":{"code":5,"msg":"stuck"}}},{"type":"rec2","fail":{"ADD":{"code":11,"msg":"not now"}}}]}`), attachment)
	const want = `plugin type="rec2" failed (add): not now; rollback: plugin type="rec1" failed (delete): stuck`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if code := spec.ErrorCode(err); code != spec.CodeTryAgain {
		t.Errorf("code is %d, the ADD's is wanted", code)
	}
}

func TestDelRunsAll(t *testing.T) {
	b := newBench(t)
	if _, err := b.Add(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	err := b.Del(t.Context(), chaintest.List(t, failing("DEL", 0)), attachment)
	const want = `plugin type="rec3" failed (delete): not now 3
plugin type="rec2" failed (delete): not now 2
plugin type="rec1" failed (delete): not now 1`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v", err)
	}
	if got := chaintest.Order(b.Calls()); got != "DEL rec3, DEL rec2, DEL rec1" {
		t.Errorf("calls: %s", got)
	}
}

func TestDelKeepsCache(t *testing.T) {
	b := newBench(t)
	if _, err := b.Add(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	if err := b.Del(t.Context(), chaintest.List(t, failing("DEL", 2)), attachment); err == nil {
		t.Error("no error")
	}
	if got := b.Cached(); got != "net-c1-eth0" {
		t.Errorf("cached after a failed DEL: %q", got)
	}
	b.Calls()
	if err := b.Del(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Error(err)
	}
	for _, c := range b.Calls() {
		var in struct{ PrevResult *spec.Result }
		if err := json.Unmarshal(c.Stdin, &in); err != nil || in.PrevResult == nil || len(in.PrevResult.Interfaces) != 3 {
			t.Errorf("%s: DEL does not have the final result: %s", c.Plugin, c.Stdin)
		}
	}
	if got := b.Cached(); got != "" {
		t.Errorf("cached after DEL: %q", got)
	}
	if err := b.Del(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Errorf("second DEL: %v", err)
	}
}

// CHECK and DEL take the arguments of the ADD from the cache, even if the caller passes empty
// ones that are not nil.
func TestArgumentsFromCache(t *testing.T) {
	b := newBench(t)
	list := chaintest.List(t, `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"rec1","capabilities":{"ips":true}}]}`)
	a, empty := attachment, attachment
	a.Args, a.Capabilities = [][2]string{{"K", "V"}, {"A", "B"}}, map[string]any{"ips": []string{"10.0.0.1"}, "mac": "x"}
	empty.Args, empty.Capabilities = [][2]string{}, map[string]any{}
	if _, err := b.Add(t.Context(), list, a); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context(), list, attachment); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context(), list, empty); err != nil {
		t.Fatal(err)
	}
	if err := b.Del(t.Context(), list, empty); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.Calls() {
		if c.Env["CNI_ARGS"] != "K=V;A=B" || !strings.Contains(string(c.Stdin), `"runtimeConfig":{"ips":["10.0.0.1"]}`) {
			t.Errorf("%s: args %q, stdin %s", c.Verb, c.Env["CNI_ARGS"], c.Stdin)
		}
	}
}

func TestDelCached(t *testing.T) {
	b := newBench(t)
	if err := b.DelCached(t.Context(), "net", attachment); !errors.Is(err, chain.ErrNotCached) {
		t.Errorf("nothing cached: %v", err)
	}
	if _, err := b.Add(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	if err := b.DelCached(t.Context(), "net", attachment); err != nil {
		t.Fatal(err)
	}
	if got := chaintest.Order(b.Calls()); got != "DEL rec3, DEL rec2, DEL rec1" {
		t.Errorf("calls: %s", got)
	}
}

// Before version 0.4.0 a DEL gets no previous result.
func TestDelOldVersion(t *testing.T) {
	for version, want := range map[string]bool{"0.2.0": false, "0.3.1": false, "0.4.0": true, "1.1.0": true} {
		b := newBench(t)
		list := chaintest.List(t, strings.Replace(three, "1.1.0", version, 1))
		if _, err := b.Add(t.Context(), list, attachment); err != nil {
			t.Fatal(version, err)
		}
		b.Calls()
		if err := b.Del(t.Context(), list, attachment); err != nil {
			t.Fatal(version, err)
		}
		if got := strings.Contains(string(b.Calls()[0].Stdin), "prevResult"); got != want {
			t.Errorf("%s: prevResult in DEL is %v", version, got)
		}
	}
}

func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 199)
	tests := []struct {
		about, network string
		a              chain.Attachment
		code           spec.Code
		msg            string
	}{
		{"no id", "net", chain.Attachment{IfName: "eth0"}, spec.CodeUnknownContainer, "missing containerID"},
		{"id leads away", "net", chain.Attachment{ContainerID: "../x", IfName: "eth0"}, spec.CodeInvalidEnvironment, "invalid characters in containerID"},
		{"name leads away", "../net", chain.Attachment{ContainerID: "c", IfName: "eth0"}, spec.CodeInvalidConfig, "invalid characters found in network name"},
		{"no interface", "net", chain.Attachment{ContainerID: "c"}, spec.CodeInvalidEnvironment, "interface name is empty"},
		{"interface leads away", "net", chain.Attachment{ContainerID: "c", IfName: "a/b"}, spec.CodeInvalidEnvironment, "interface name contains"},
		{"too long for a file", long, chain.Attachment{ContainerID: long, IfName: "eth0"}, spec.CodeInvalidEnvironment, "too long together"},
	}
	b := newBench(t)
	for _, test := range tests {
		list := chaintest.List(t, three)
		list.Name = test.network
		_, add := b.Add(t.Context(), list, test.a)
		for verb, err := range map[string]error{"add": add, "del": b.Del(t.Context(), list, test.a), "check": b.Check(t.Context(), list, test.a)} {
			if err == nil || !strings.Contains(err.Error(), test.msg) || spec.ErrorCode(err) != test.code {
				t.Errorf("%s: %s: %v (code %d)", test.about, verb, err, spec.ErrorCode(err))
			}
		}
	}
	if calls := b.Calls(); len(calls) > 0 {
		t.Errorf("plugins were called: %s", chaintest.Order(calls))
	}
}

// A cancelled ADD kills the plugin with all its child processes, and rolls back.
func TestCancelKillsGroup(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil { // until the plugin has written its child's pid
			data, _ := os.ReadFile(b.Log)
			if strings.Count(string(data), "\n") == 3 {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	start := time.Now()
	_, err := b.Add(ctx, chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1"},{"type":"rec2","hang":"ADD"}]}`), attachment)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	}
	calls := b.Calls()
	if got := chaintest.Order(calls); got != "ADD rec1, ADD rec2, ADD rec2, DEL rec2, DEL rec1" {
		t.Fatalf("calls: %s", got)
	}
	child, err := strconv.Atoi(calls[2].Note)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); syscall.Kill(child, 0) == nil && !zombie(child); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the plugin's child %d lives on", child)
		}
	}
}

// zombie reports whether a process has ended and is not reaped yet.
func zombie(pid int) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(data), ") Z ")
}

func TestTrace(t *testing.T) {
	b := newBench(t)
	list := chaintest.List(t, three)
	t.Setenv("TRACEPARENT", "from-environment")
	if err := b.Status(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if got := b.Calls()[0].Env["TRACEPARENT"]; got != "from-environment" {
		t.Errorf("TRACEPARENT is %q", got)
	}
	ctx := chain.WithTrace(t.Context(), chain.Trace{Parent: "00-1", State: "s=1", Baggage: "b=2"})
	if err := b.Status(ctx, list); err != nil {
		t.Fatal(err)
	}
	env := b.Calls()[0].Env
	if env["TRACEPARENT"] != "00-1" || env["TRACESTATE"] != "s=1" || env["BAGGAGE"] != "b=2" {
		t.Errorf("trace context is %v", env)
	}
}
