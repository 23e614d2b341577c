// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

func (b *bench) add(list *chain.List, ids ...string) {
	b.T.Helper()
	for _, id := range ids {
		a := chain.Attachment{ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0", Args: [][2]string{{"ID", id}}}
		if _, err := b.Add(b.T.Context(), list, a); err != nil {
			b.T.Fatal(err)
		}
	}
	b.Calls()
}

func TestGC(t *testing.T) {
	b := newBench(t)
	list := chaintest.List(t, three)
	b.add(list, "a", "b", "c")
	other := chaintest.List(t, strings.Replace(three, `"net"`, `"net-b"`, 1))
	b.add(other, "a")
	err := b.GC(t.Context(), chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "b", IfName: "eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	calls := b.Calls()
	const del = "DEL rec3, DEL rec2, DEL rec1, "
	if got := chaintest.Order(calls); got != del+del+"GC rec1, GC rec2, GC rec3" {
		t.Errorf("calls: %s", got)
	}
	if env := calls[0].Env; env["CNI_CONTAINERID"] != "a" || env["CNI_NETNS"] != "/run/netns/a" || env["CNI_ARGS"] != "ID=a" {
		t.Errorf("stale DEL: %v", env)
	}
	for _, c := range calls[6:] {
		for _, key := range []string{"cni.dev/attachments", "cni.dev/valid-attachments"} {
			if want := `"` + key + `":[{"containerID":"b","ifname":"eth0"}]`; !strings.Contains(string(c.Stdin), want) {
				t.Errorf("%s: want %s in %s", c.Plugin, want, c.Stdin)
			}
		}
		if c.Env["CNI_CONTAINERID"] != "" || c.Env["CNI_PATH"] == "" {
			t.Errorf("GC: %v", c.Env)
		}
	}
	if got := b.Cached(); got != "net-b-a-eth0 net-b-eth0" {
		t.Errorf("cached: %q", got)
	}
}

// GC sends an empty list of valid attachments as an empty list. If the list were missing, the
// plugins would keep everything.
func TestGCNothingValid(t *testing.T) {
	b := newBench(t)
	if err := b.GC(t.Context(), chain.Keep{List: chaintest.List(t, three)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.Calls() {
		if !strings.Contains(string(c.Stdin), `"cni.dev/valid-attachments":[]`) {
			t.Errorf("%s", c.Stdin)
		}
	}
}

func TestGCBatchGoesOn(t *testing.T) {
	b := newBench(t)
	broken := chaintest.List(t, failing("GC", 0))
	old := chaintest.List(t, `{"cniVersion":"1.0.0","name":"old","plugins":[{"type":"rec1","fail":{"DEL":{"code":5,"msg":"stuck"}}}]}`)
	off := chaintest.List(t, `{"cniVersion":"1.1.0","name":"off","disableGC":true,"plugins":[{"type":"rec1"}]}`)
	fine := chaintest.List(t, `{"cniVersion":"1.1.0","name":"fine","plugins":[{"type":"rec3"}]}`)
	b.add(old, "x")
	b.add(off, "x")
	err := b.GC(t.Context(), chain.Keep{List: broken}, chain.Keep{List: old}, chain.Keep{List: off}, chain.Keep{List: fine})
	const want = `failed to GC plugin rec1: not now 1
failed to GC plugin rec2: not now 2
failed to GC plugin rec3: not now 3
failed to delete stale attachment x eth0: plugin type="rec1" failed (delete): stuck`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v", err)
	}
	if got := chaintest.Order(b.Calls()); got != "GC rec1, GC rec2, GC rec3, DEL rec1, GC rec3" {
		t.Errorf("calls: %s", got)
	}
}

// GC deletes the dead attachment with the configuration of its ADD.
func TestGCUsesTheConfigOfTheAdd(t *testing.T) {
	b := newBench(t)
	b.add(chaintest.List(t, three), "a")
	now := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1"}]}`)
	if err := b.GC(t.Context(), chain.Keep{List: now}); err != nil {
		t.Fatal(err)
	}
	if got := chaintest.Order(b.Calls()); got != "DEL rec3, DEL rec2, DEL rec1, GC rec1" {
		t.Errorf("calls: %s", got)
	}
}

func TestGCSweepsBrokenCache(t *testing.T) {
	b := newBench(t)
	list := chaintest.List(t, three)
	b.add(list, "a")
	results := filepath.Join(b.CacheDir, "results")
	for _, name := range []string{"net-stale-eth0", "net-valid-eth0", "net-young-eth0"} {
		path := filepath.Join(results, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if name != "net-young-eth0" {
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	killed := filepath.Join(b.CacheDir, ".result-0123456789abcdef")
	if err := os.WriteFile(killed, []byte(`{"kind":`), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := os.Stat(killed); err == nil {
			t.Error("what a killed ADD left is still there")
		}
	}()
	err := b.GC(t.Context(), chain.Keep{List: list, Valid: []spec.AttachmentKey{
		{ContainerID: "a", IfName: "eth0"}, {ContainerID: "valid", IfName: "eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Cached(); got != "net-a-eth0 net-valid-eth0 net-young-eth0" {
		t.Errorf("cached: %q", got)
	}
	if len(b.Warned) == 0 || !errors.Is(b.Warned[0], chain.ErrBrokenCache) {
		t.Errorf("warned: %v", b.Warned)
	}
}

// While a GC of a network runs, no ADD and no DEL runs in the network. While an ADD or DEL runs,
// no GC does. ADDs of different containers run at the same time; operations on one container do
// not.
func TestExclusion(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // several goroutines would call it
	list := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","hold":"ADD"}]}`)
	gc := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec2","hold":"GC"}]}`)
	errs := make(chan error)
	for _, id := range []string{"a", "a", "b", "c", "d"} {
		go func() {
			_, err := b.Add(t.Context(), list, chain.Attachment{ContainerID: id, NetNS: "/x", IfName: "eth0"})
			errs <- err
		}()
	}
	for range 3 {
		go func() { errs <- b.GC(t.Context(), chain.Keep{List: gc}) }()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	overlap(t, b.Calls())
	if left, _ := filepath.Glob(filepath.Join(b.RunDir, "locks", "*.container.lock")); len(left) > 0 {
		t.Errorf("lock files stay: %v", left)
	}
}

// overlap checks in the log of the recorders that ADDs of different containers ran at the same
// time, and that nothing else did.
func overlap(t *testing.T, calls []chaintest.Call) {
	t.Helper()
	adds, gcs, together := map[string]int{}, 0, 0
	for _, c := range calls {
		step := map[string]int{"begin": 1, "end": -1}[c.Note]
		if c.Verb == "GC" {
			gcs += step
		} else {
			adds[c.Env["CNI_CONTAINERID"]] += step
		}
		sum := 0
		for id, n := range adds {
			sum += n
			if n > 1 {
				t.Errorf("two operations on container %s at once", id)
			}
		}
		together = max(together, sum)
		if gcs > 1 || gcs > 0 && sum > 0 {
			t.Errorf("%d GC beside %d ADD", gcs, sum)
		}
	}
	if together < 2 {
		t.Error("ADDs of different containers never ran together")
	}
}

func TestLockWaitIsCancelled(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two goroutines would call it
	until := filepath.Join(t.TempDir(), "go on")
	list := chaintest.List(t, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","hold":"ADD","until":%q}]}`, until))
	done := make(chan error)
	go func() {
		_, err := b.Add(t.Context(), list, attachment)
		done <- err
	}()
	for { // until the plugin has begun
		if data, _ := os.ReadFile(b.Log); len(data) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		err := b.GC(short, chain.Keep{List: list})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "operations.lock") {
			t.Errorf("error is %v", err)
		}
	}
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCheckAndStatus(t *testing.T) {
	b := newBench(t)
	list := chaintest.List(t, failing("CHECK", 2))
	b.add(list, "c1")
	err := b.Check(t.Context(), list, attachment)
	if err == nil || err.Error() != "not now 2" || spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("check: %v", err)
	}
	calls := b.Calls()
	if got := chaintest.Order(calls); got != "CHECK rec1, CHECK rec2, CHECK rec3" {
		t.Errorf("calls: %s", got)
	}
	if err := b.Check(t.Context(), chaintest.List(t, failing("CHECK", 0)), attachment); err == nil || err.Error() != "not now 1\nnot now 2\nnot now 3" {
		t.Errorf("check: %v", err)
	}
	var in struct{ PrevResult *spec.Result }
	if err := json.Unmarshal(calls[0].Stdin, &in); err != nil || in.PrevResult == nil || len(in.PrevResult.Interfaces) != 3 {
		t.Errorf("CHECK does not have the final result: %s", calls[0].Stdin)
	}
	if err := b.Status(t.Context(), chaintest.List(t, failing("STATUS", 2))); err == nil || err.Error() != "not now 2" {
		t.Errorf("status: %v", err)
	}
	if err := b.Status(t.Context(), chaintest.List(t, failing("STATUS", 0))); err == nil || err.Error() != "not now 1\nnot now 2\nnot now 3" {
		t.Errorf("status: %v", err)
	}
	if err := b.Status(t.Context(), chaintest.List(t, strings.Replace(failing("STATUS", 2), "1.1.0", "1.0.0", 1))); err != nil {
		t.Errorf("status before 1.1.0: %v", err)
	}
}

func TestCheckSwitches(t *testing.T) {
	b := newBench(t)
	off := chaintest.List(t, strings.Replace(failing("CHECK", 0), `"name"`, `"disableCheck":"TRUE","name"`, 1))
	if err := b.Check(t.Context(), off, attachment); err != nil {
		t.Errorf("disableCheck: %v", err)
	}
	err := b.Check(t.Context(), chaintest.List(t, strings.Replace(three, "1.1.0", "0.3.1", 1)), attachment)
	if !errors.Is(err, chain.ErrCheckNotSupported) || err.Error() != `configuration version "0.3.1" does not support the CHECK command` {
		t.Errorf("0.3.1: %v", err)
	}
	if calls := b.Calls(); len(calls) > 0 {
		t.Errorf("calls: %s", chaintest.Order(calls))
	}
	if err := b.Check(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Errorf("nothing cached: %v", err)
	}
	if calls := b.Calls(); len(calls) != 3 || strings.Contains(string(calls[0].Stdin), "prevResult") {
		t.Errorf("nothing cached: %+v", calls)
	}
}

func TestValidate(t *testing.T) {
	b := newBench(t)
	caps, err := b.Validate(t.Context(), chaintest.List(t, `{"cniVersion":"1.0.0","name":"n","plugins":[
		{"type":"rec1","capabilities":{"mac":true,"ips":false}},{"type":"rec2","capabilities":{"bandwidth":true}}]}`))
	if err != nil || strings.Join(caps, " ") != "bandwidth mac" {
		t.Errorf("%v, %v", caps, err)
	}
	_, err = b.Validate(t.Context(), chaintest.List(t, `{"cniVersion":"9.0.0","name":"n","plugins":[{"type":"rec1"},{"type":"missing"},
		{"type":"rec2","fail":{"VERSION":{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}}}]}`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`plugin rec1 does not support config version "9.0.0"`, `failed to find plugin "missing" in path [`, `plugin rec2 does not`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
