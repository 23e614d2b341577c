// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	records "github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// A second ADD that fails does not remove the first attachment, even if its cached result is torn.
func TestAddAgainBesideATornResult(t *testing.T) {
	b := newBench(t)
	b.add(chaintest.List(t, three), "c1")
	if err := os.Truncate(filepath.Join(b.CacheDir, "results", "net-c1-eth0"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(t.Context(), chaintest.List(t, failing("ADD", 2)), attachment); err == nil {
		t.Fatal("the ADD works")
	}
	if got := chaintest.Order(b.Calls()); got != "ADD rec1, ADD rec2" {
		t.Errorf("calls: %s", got)
	}
}

// A GC skips a container on which another operation works, here a CHECK that hangs, and does not keep ADDs waiting.
func TestGCDoesNotWaitForAContainer(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two goroutines would call it
	list := chaintest.List(t, three)
	b.add(list, "busy", "dead")
	lock := filepath.Join(b.RunDir, "locks", "busy.container.lock")
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // empty
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := b.GC(t.Context(), chain.Keep{List: list}); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the GC took %v", took)
	}
	if got := b.Cached(); got != "net-busy-eth0" {
		t.Errorf("cached: %q", got)
	}
}

// While a GC detaches what is dead, ADDs of other containers run. The plugins' GC then learns of them, and does
// not remove them.
func TestAddWhileAGCDetaches(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two goroutines would call it
	until := filepath.Join(t.TempDir(), "go on")
	b.add(chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","hold":"DEL","until":"`+until+`"}]}`), "dead")
	list := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec2"}]}`)
	b.Set(chain.WithLimits(chain.Limits{Lock: 10 * time.Second}))
	done := make(chan error)
	go func() { done <- b.GC(t.Context(), chain.Keep{List: list}) }()
	for {
		if data, _ := os.ReadFile(b.Log); len(data) > 0 { // the DEL has begun
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := b.Add(t.Context(), list, chain.Attachment{ContainerID: "new", NetNS: "/run/netns/new", IfName: "eth0"}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	calls := b.Calls()
	last := calls[len(calls)-1]
	conf, err := spec.ParseConf(last.Stdin)
	if err != nil {
		t.Fatal(err)
	}
	if valid, _ := conf.Valid(); last.Verb != "GC" || len(valid) != 1 || valid[0].ContainerID != "new" {
		t.Errorf("%s %s", last.Verb, last.Stdin)
	}
	if got := b.Cached(); got != "net-new-eth0" {
		t.Errorf("cached: %q", got)
	}
}

// A hung plugin's GC ends before ADDs that wait for it give up.
func TestGCOfAHungPlugin(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two goroutines would call it
	b.Set(chain.WithLimits(chain.Limits{Lock: 10 * time.Second, Del: time.Second}))
	list := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","hang":"GC"}]}`)
	done := make(chan error)
	go func() { done <- b.GC(t.Context(), chain.Keep{List: list}) }()
	for {
		if data, _ := os.ReadFile(b.Log); len(data) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := b.Add(t.Context(), list, attachment); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the plugin does not hang")
	}
}

// A broken cached result stays if it may be that of a network whose name begins as the GC's.
func TestGCKeepsBrokenResultsOfOthers(t *testing.T) {
	b := newBench(t)
	chaintest.Write(t, b.ConfDir, map[string]string{"b.conflist": `{"cniVersion":"1.1.0","name":"net-b","plugins":[{"type":"rec1"}]}`})
	list := chaintest.List(t, three)
	b.add(list, "a")
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"net-b-c1-eth0", "net-c1-eth0"} {
		path := filepath.Join(b.CacheDir, "results", name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.GC(t.Context(), chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "a", IfName: "eth0"}}}); err != nil {
		t.Fatal(err)
	}
	if got := b.Cached(); got != "net-a-eth0 net-b-c1-eth0" {
		t.Errorf("cached: %q", got)
	}
}

// A GC keeps what another runtime attached while its namespace exists, and names it to the plugins. With a list of
// every runtime's attachments, GC removes it.
func TestGCOfOtherRuntimes(t *testing.T) {
	for _, everyones := range []bool{false, true} {
		b := newBench(t)
		list := chaintest.List(t, three)
		b.add(list, "theirs", "ours")
		s := records.New(b.RunDir)
		own, err := os.ReadFile("/proc/self/comm")
		must(t, err)
		for id, runtime := range map[string]string{"theirs": "other", "ours": strings.TrimSpace(string(own))} {
			must(t, s.Write(&records.Record{
				Plugin: "rec1", Network: "net", ContainerID: id, IfName: "eth0", Owner: owner.Of("net", id, "eth0"),
				Runtime: runtime, // the namespace is not known
			}))
		}
		s.Close()
		must(t, b.GC(t.Context(), chain.Keep{List: list, Everyones: everyones}))
		calls := b.Calls()
		want, valid := "net-theirs-eth0", `[{"containerID":"theirs","ifname":"eth0"}]`
		if everyones {
			want, valid = "", "[]"
		}
		if got := b.Cached(); got != want {
			t.Errorf("everyone's %v, cached: %q", everyones, got)
		}
		if last := calls[len(calls)-1]; !strings.Contains(string(last.Stdin), `"cni.dev/valid-attachments":`+valid) {
			t.Errorf("everyone's %v: %s", everyones, last.Stdin)
		}
	}
}

// Where the attachment of another runtime may be: records and the cached result say so together. A record without a
// namespace says nothing, and a result counts beside the records, because another program may have attached the container
// again.
func TestGCOfOtherRuntimesLooksWhereTracesLead(t *testing.T) {
	earlier := &life.Mark{Boot: "an earlier boot"} // no namespace has it
	for about, c := range map[string]struct {
		path    string // in the cached result
		records map[string]string
		stays   bool
	}{
		"gone":                            {"/proc/4194399/ns/net", map[string]string{"rec1": "/proc/4194399/ns/net"}, false},
		"gone, by one of two records":     {"/proc/4194399/ns/net", map[string]string{"rec1": "/proc/4194399/ns/net", "rec2": ""}, false},
		"gone, but the result says where": {"a file", map[string]string{"rec1": "/proc/4194399/ns/net"}, true},
	} {
		b := newBench(t)
		list := chaintest.List(t, three)
		if c.path == "a file" { // perhaps a mount that is hidden from this process
			c.path = filepath.Join(t.TempDir(), "hidden")
			must(t, os.WriteFile(c.path, nil, 0o600))
		}
		_, err := b.Add(t.Context(), list, chain.Attachment{ContainerID: "theirs", NetNS: c.path, IfName: "eth0"})
		must(t, err)
		s := records.New(b.RunDir)
		for plugin, path := range c.records {
			rec := &records.Record{
				Plugin: plugin, Network: "net", ContainerID: "theirs", IfName: "eth0", Owner: owner.Of("net", "theirs", "eth0"), Runtime: "other", NetNS: path,
			}
			if path != "" {
				rec.NetNSMark = earlier
			}
			must(t, s.Write(rec))
		}
		s.Close()
		must(t, b.GC(t.Context(), chain.Keep{List: list}))
		if got := b.Cached(); (got != "") != c.stays {
			t.Errorf("%s: cached: %q", about, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
