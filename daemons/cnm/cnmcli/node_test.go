// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// node is what the program patchbay sees of a node: its own plugins, and the plugins of
// patchbay-cnm in a directory.
type node struct {
	*endpointtest.World
	dir string
}

func session() *plugin.Session {
	s := plugin.NewSession(all.Plugins())
	s.Stderr = io.Discard
	return s
}

func (n *node) options(apply bool) gc.Options {
	p := paths.Default()
	rt := chain.New(chain.WithPath(n.dir), chain.WithCacheDir(p.CNI), chain.WithRunDir(p.Run), chain.WithInvoker(&plugin.Builtin{NewSession: session}))
	return gc.Options{Paths: p, Runtime: rt, NewSession: session, Apply: apply}
}

// gc checks what `patchbay gc` reports: the one attachment that is dead, and the number of living
// ones.
func (n *node) gc(apply bool, alive int, state gc.State, why string, removed bool) {
	n.Helper()
	report, err := gc.Run(n.Context(), n.options(apply))
	must(n, err)
	if report.Alive != alive || len(report.Attachments) != 1 {
		n.Fatalf("%d live, %d others, not %d and 1: %+v", report.Alive, len(report.Attachments), alive, report.Attachments)
	}
	a := report.Attachments[0]
	if a.State != state || !strings.Contains(a.Why, why) || a.Removed != removed {
		n.Errorf("%s: %s because %s, removed: %v; want %s because %s, %v", a.Name(), a.State, a.Why, a.Removed, state, why, removed)
	}
}

// doctor checks that `patchbay doctor` reports leftovers with this text.
func (n *node) doctor(text string) {
	n.Helper()
	o := n.options(false)
	d := &doctor.Node{Paths: o.Paths, ConfDir: n.dir, Runtime: o.Runtime, NewSession: session, GC: o}
	must(n, d.Open())
	defer d.Close()
	checks := slices.DeleteFunc(doctor.Checks(), func(c doctor.Check) bool { return c.ID != "leftovers" })
	report := doctor.Examine(n.Context(), d, checks)
	if s := fmt.Sprint(report.Findings); !strings.Contains(s, text) || text == "" && len(report.Findings) > 0 {
		n.Errorf("doctor finds %s, want %q", s, text)
	}
}

// TestNodeGC checks that `patchbay gc` and `patchbay doctor` know what drivers attached. They
// leave living attachments alone, and call the plugins of patchbay-cnm for the dead ones.
func TestNodeGC(t *testing.T) {
	fresh(t)
	d := &cnmtest.Driver{}
	srv := cnmtest.Start(t, "lab", d)
	n := &node{World: endpointtest.New(t, append([]*plugin.Plugin{&cnmplugin.Plugin}, Plugins()[1:]...)...), dir: t.TempDir()}
	conf := `"driver":"lab","timeout":20,"ipam":{"type":"cnm-ipam","driver":"lab","timeout":20,"subnet":"10.88.0.0/24"}`
	a, b, c := n.Pod("a", conf), n.Pod("b", conf), n.Pod("c", conf)
	a.Call.NetNS = "/run/netns/another" // no other process has this namespace open
	must(t, netns.Create(a.Call.NetNS))
	for _, p := range []*endpointtest.Pod{a, b, c} {
		must(t, p.Do(spec.Add))
	}
	n.doctor("")
	inode := inodeOf(t, a.Call.NetNS)
	must(t, netns.Delete(a.Call.NetNS))
	defer enterReused(t, inode)()

	n.gc(false, 2, gc.Dead, "its namespace /run/netns/another is gone", false)
	n.doctor("not removed yet: 1 dead attachment with 1 address: net a/eth0")
	n.gc(true, 2, gc.Unsure, "patchbay-cnm install DIR", false) // no installed plugin can reach the driver
	n.Want("endpoints", fmt.Sprint(d.Endpoints()), "3")
	n.dir = plugintest.Install(t, Plugins()...)
	adding := record.OfDrivers(paths.Default().State) // an ADD locks the record in this way
	_, err := adding.ReadLocked("net", owner.Of("net", "a", "eth0"), "cnm")
	must(t, err)
	n.gc(true, 2, gc.Unsure, "an ADD or DEL is working on it", false)
	adding.Close()
	n.gc(true, 2, gc.Dead, "is gone", true)
	n.Want("endpoints and addresses", fmt.Sprint(d.Endpoints(), d.Addresses()), "2 3") // one of them is the gateway's
	n.doctor("")

	// The container is detached while the driver is away. Once the driver is back, gc ends the
	// attachment at the driver. Until then gc keeps the link.
	back := srv.Away(t, draw.All(t))
	must(t, b.Do(spec.Del))
	n.gc(false, 1, gc.Dead, "it was detached, and driver lab has not been notified", false)
	n.gc(true, 1, gc.Unsure, "a later gc, ADD or GC calls it", false)
	back()
	n.Want("endpoints and links", fmt.Sprint(d.Endpoints(), n.links()), "2 1")
	n.gc(true, 1, gc.Dead, "has not been notified", true)
	n.Want("endpoints and links", fmt.Sprint(d.Endpoints(), n.links()), "1 0")
	must(t, c.Do(spec.Check))
	must(t, c.Do(spec.Del))
	n.Want("endpoints and addresses", fmt.Sprint(d.Endpoints(), d.Addresses()), "0 1")
	n.doctor("")
	if _, err := c.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Errorf("the container has its interface: %v", err)
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

// enterReused puts a thread into a new namespace to which the kernel has given an inode number again.
// leave ends the thread.
func enterReused(t *testing.T, inode uint64) (leave func()) {
	t.Helper()
	const path = "/run/netns/reused"
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		must(t, netns.Create(path))
		ns, err := netns.Open(path)
		must(t, err)
		reused := inodeOf(t, path) == inode
		must(t, netns.Delete(path)) // the thread alone keeps it
		inside := ns.NewWorker()
		must(t, inside.Do(func() error { return ns.Close() }))
		if reused {
			return inside.Close
		}
		inside.Close()
	}
	t.Logf("inode number %d is not free: another test's namespace may have it, which is the same to gc", inode)
	return func() {}
}

// links counts the links on the host that must go back to the driver.
func (n *node) links() (count int) {
	n.Helper()
	links, err := n.HostConn().LinkList()
	must(n, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "cs") {
			count++
		}
	}
	return count
}
