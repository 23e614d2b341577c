// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// links makes links that the test removes.
func links(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if out, err := exec.Command("ip", "link", "add", name, "type", "bridge").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	}
}

// fastPaths queues the fast path between a bridge and an uplink.
func fastPaths(c *Conn, bridge, uplink string) {
	c.Queue(EnsureFastPath(bridge, uplink))
	c.Add(FastPath(bridge, uplink, "pods"))
}

// A probe answers the same as nft --check, and leaves nothing.
func TestTryFastPath(t *testing.T) {
	c := open(t)
	err := c.TryFastPath()
	if nftTool(t, "list", "ruleset") != "" {
		t.Error("the probe left something")
	}
	if err2 := c.TryFastPath(); (err == nil) != (err2 == nil) {
		t.Errorf("first %v, then %v", err, err2)
	}
	c.Add(network()...) // the socket still works
	commit(t, c)
	nft := nettest.Flowtables().Probe()
	if (err == nil) != (nft == nil) || err != nil && !errors.Is(err, ErrNoFastPath) {
		t.Errorf("nft --check says %v, and the probe %v", nft, err)
	}
	t.Log(err)
}

// The table without a fast path is unchanged, before and after. nft prints the objects and loads them again.
func TestFastPath(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	c := open(t)
	links(t, "cni0", "cni1", "wan0")
	c.Add(network()...)
	commit(t, c)
	before := nftTool(t, "list", "ruleset")
	fastPaths(c, "cni0", "wan0")
	c.Queue(EnsureFastPath("cni0", "nosuchlink"))
	commit(t, c)
	fastPaths(c, "cni1", "wan0")
	commit(t, c)
	got := nftTool(t, "list", "ruleset")
	for _, want := range []string{"devices = { cni0, cni1, wan0 }", "counter\n\t}",
		"iifname . oifname @fastpath ct state established flow add @fastpath", "hook forward priority filter + 10"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	reload(t, c, got)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("loaded again: %q, %v", diffs, err)
	}
	all, err := c.OfNetworks()
	if err != nil || !slices.ContainsFunc(all, FastPath("cni0", "wan0", "pods").SameKey) {
		t.Errorf("%v, %v", all, err)
	}
	c = Open(t.TempDir()) // a process for which it is not known whether elements expire
	defer c.Close()       //nolint:errcheck // a test
	for _, bridge := range []string{"cni0", "cni1"} {
		e := FastPath(bridge, "wan0", "pods")
		c.Remove(e)
		c.Queue(LeaveFastPath(e))
		commit(t, c)
		if _, there, err := c.Get(SetFastPath, FastPath("cni1", "wan0", "").Key); err != nil || there != (bridge == "cni0") {
			t.Errorf("after %s, cni1: %v, %v", bridge, there, err)
		}
	}
	if works, known := c.ExpiryWorks(); known {
		t.Errorf("the deletion of the set says that elements expire: %v", works)
	}
	if after := nftTool(t, "list", "ruleset"); sorted(after) != sorted(before) {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
}

// The kernel takes a deleted link out of the flowtable; the next ADD, CHECK or repair finds that a new link is not in it. Since
// Linux 6.16 the flowtable keeps the name, and has the new link at once.
func TestFastPathOfANewLink(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	c := open(t)
	links(t, "cni0", "wan0")
	fastPaths(c, "cni0", "wan0")
	commit(t, c)
	if out, err := exec.Command("ip", "link", "del", "wan0").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	lacks := func(want bool) {
		t.Helper()
		if todo, err := EnsureFastPath("cni0", "wan0").Plan(c); err != nil || (todo != nil) != want {
			t.Errorf("something is missing: %v, %v", todo != nil, err)
		}
	}
	lacks(false)
	have, err := c.readFastPath()
	if err != nil {
		t.Fatal(err)
	}
	links(t, "wan0")
	lacks(!slices.Contains(have.devices, "wan0"))
	fastPaths(c, "cni0", "wan0")
	commit(t, c)
	lacks(false)
}

// Verify finds what other programs changed, and Rebuild restores it with the devices.
func TestFastPathRebuilt(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	c := open(t)
	links(t, "cni0", "wan0")
	fastPaths(c, "cni0", "wan0")
	commit(t, c)
	before := nftTool(t, "list", "ruleset")
	for _, harm := range []string{"flush chain inet patchbay fastpath", "add rule inet patchbay fastpath drop",
		"flush chain inet patchbay fastpath; delete chain inet patchbay fastpath",
		"flush chain inet patchbay fastpath; add rule inet patchbay fastpath iifname . oifname @fastpath ct state established accept"} {
		nftTool(t, harm)
		if diffs, err := c.Verify(); err != nil || len(diffs) == 0 {
			t.Errorf("%s: %q, %v", harm, diffs, err)
		}
		if err := c.Rebuild(t.Context()); err != nil {
			t.Fatal(harm, err)
		}
		if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
			t.Errorf("%s, rebuilt: %q, %v", harm, diffs, err)
		}
		if after := nftTool(t, "list", "ruleset"); sorted(after) != sorted(before) {
			t.Errorf("%s, rebuilt:\n%s\nbefore:\n%s", harm, after, before)
		}
	}
	nftTool(t, "flush chain inet patchbay fastpath; delete flowtable inet patchbay fastpath")
	if err := c.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	fastPaths(c, "cni0", "wan0") // Rebuild does not know the devices, so repair adds them for each fact
	commit(t, c)
	if after := nftTool(t, "list", "ruleset"); sorted(after) != sorted(before) {
		t.Errorf("without its flowtable, restored:\n%s\nbefore:\n%s", after, before)
	}
}

// between is an extra that runs something once, after the plans of the extras before it.
type between struct{ run func() }

func (between) String() string { return "run something" }

func (b *between) Plan(*Conn) (func(*nftables.Conn) error, error) {
	if b.run != nil {
		run := b.run
		b.run = nil
		run()
	}
	return nil, nil
}

// Between the plan of an ADD and its transaction, another process removes the last pair of another bridge and
// adds a pair. The new flowtable must have the devices of the ADD.
func TestFastPathMadeAnew(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	c, other := open(t), Open(t.TempDir())
	defer other.Close() //nolint:errcheck // a test
	links(t, "cni0", "cni1", "wan0", "wan1")
	old := FastPath("cni0", "wan0", "pods")
	fastPaths(c, "cni0", "wan0")
	commit(t, c)
	fastPaths(c, "cni0", "wan0")
	c.Queue(&between{func() {
		other.Remove(old)
		other.Queue(LeaveFastPath(old))
		commit(t, other)
		fastPaths(other, "cni1", "wan1")
		commit(t, other)
	}})
	commit(t, c)
	if have, err := c.readFastPath(); err != nil || len(have.devices) != 4 {
		t.Errorf("devices %q, want 4 (%v)", have.devices, err)
	}
}

// Processes that add the first pair and delete the flowtable with the last one do not harm each other.
func TestFastPathAtOnce(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	open(t)
	links(t, "cni0", "cni1", "cni2", "cni3", "wan0")
	dir := t.TempDir()
	var wg sync.WaitGroup
	for _, bridge := range []string{"cni0", "cni1", "cni2", "cni3"} {
		wg.Go(func() {
			c := Open(dir)
			defer c.Close() //nolint:errcheck // a test
			e := FastPath(bridge, "wan0", "pods")
			for range 5 {
				fastPaths(c, bridge, "wan0")
				if err := c.Commit(context.Background()); err != nil {
					t.Error("add", bridge, err)
				}
				if _, there, err := c.Get(e.Set, e.Key); err != nil || !there {
					t.Error(bridge, there, err)
				}
				if todo, err := EnsureFastPath(bridge, "wan0").Plan(c); err != nil || todo != nil {
					have, err2 := c.readFastPath()
					t.Errorf("%s lacks something (%v); a moment later there is %+v (%v)", bridge, err, have, err2)
				}
				c.Remove(e)
				c.Queue(LeaveFastPath(e))
				if err := c.Commit(context.Background()); err != nil {
					t.Error("remove", bridge, err)
				}
			}
		})
	}
	wg.Wait()
	if left := nftTool(t, "list", "ruleset"); strings.Contains(left, "fastpath") {
		t.Errorf("left:\n%s", left)
	}
}
