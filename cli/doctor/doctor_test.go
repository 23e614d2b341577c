// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// bench is a separate node: a network namespace, on a thread that ends with the test, and
// directories.
type bench struct {
	*testing.T
	conf, bin string
	paths     paths.Paths
	askTime   time.Duration // for calls of the runtime
	wait      func(time.Duration)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	runtime.LockOSThread() // never unlocked
	b := &bench{T: t, conf: t.TempDir(), bin: t.TempDir()}
	dir := t.TempDir()
	b.paths = paths.From(func(name string) string { return filepath.Join(dir, name) })
	b.paths.Proc, b.paths.Sys, b.paths.NetNS = "/proc", "/sys", "/run/netns"
	b.must(unix.Unshare(unix.CLONE_NEWNET))
	lo, err := netlink.LinkByName("lo")
	b.must(err)
	b.must(netlink.LinkSetUp(lo))
	return b
}

// waited runs what the test does while doctor waits.
func (b *bench) waited(d time.Duration) {
	if b.wait != nil {
		b.wait(d)
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// network writes a configuration; plugins are JSON.
func (b *bench) network(name, plugins string) {
	b.Helper()
	text := fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, plugins)
	b.must(os.WriteFile(filepath.Join(b.conf, name+".conflist"), []byte(text), 0o600))
}

func (b *bench) runtime() *chain.Runtime {
	return chain.New(chain.WithPath(b.bin), chain.WithConfDir(b.conf), chain.WithCacheDir(b.paths.CNI), chain.WithRunDir(b.paths.Run), chain.WithInvoker(&plugin.Builtin{NewSession: b.session}))
}

func (b *bench) session() *plugin.Session {
	s := plugin.NewSession(all.Plugins())
	s.Paths, s.Stderr = b.paths, io.Discard
	return s
}

// attach calls ADD for a new namespace.
func (b *bench) attach(network, id string) (path string) {
	b.Helper()
	path = filepath.Join(b.paths.NetNS, id)
	b.must(netns.Create(path))
	b.Cleanup(func() { b.must(netns.Delete(path)) })
	list, err := b.runtime().Load(network)
	b.must(err)
	_, err = b.runtime().Add(context.Background(), list, chain.Attachment{ContainerID: id, NetNS: path, IfName: "eth0"})
	b.must(err)
	return path
}

// check runs one check.
func (b *bench) check(id string) []Finding {
	b.Helper()
	rt := b.runtime().With(chain.WithLimits(chain.Limits{Ask: b.askTime}))
	n := &Node{
		Paths: b.paths, ConfDir: b.conf, Runtime: rt, NewSession: b.session,
		GC: gc.Options{Paths: b.paths, Runtime: rt, NewSession: b.session}, Wait: b.waited,
	}
	b.must(n.Open())
	defer n.Close()
	i := slices.IndexFunc(Checks(), func(c Check) bool { return c.ID == id })
	if i < 0 {
		b.Fatalf("no check %s", id)
	}
	return Examine(context.Background(), n, Checks()[i:i+1]).Findings
}

// healthy fails when the check finds something.
func (b *bench) healthy(id string) {
	b.Helper()
	if found := b.check(id); len(found) > 0 {
		b.Errorf("%s on a node where all is well: %+v", id, found)
	}
}

// finds runs one check and compares its findings with the wanted ones. Each wanted finding is a
// level and a part of the text: "warning: text". Every finding must have a fix.
func (b *bench) finds(id string, want ...string) {
	b.Helper()
	b.compare(id, b.check(id), want)
}

func (b *bench) compare(id string, found []Finding, want []string) {
	b.Helper()
	if len(found) != len(want) {
		b.Errorf("%s: %d findings, want %d: %+v", id, len(found), len(want), found)
		return
	}
	for i, f := range found {
		level, text, _ := strings.Cut(want[i], ": ")
		if string(f.Level) != level || !strings.Contains(f.What, text) || f.Fix == "" || f.Check != id {
			b.Errorf("%s: %+v, want %s", id, f, want[i])
		}
	}
}

// veth makes a pair that is up, with an address.
func (b *bench) veth(name, addr string) netlink.Link {
	b.Helper()
	a := netlink.NewLinkAttrs()
	a.Name = name
	b.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name + "p"}))
	for _, end := range []string{name + "p", name} {
		l, err := netlink.LinkByName(end)
		b.must(err)
		b.must(netlink.LinkSetUp(l))
	}
	l, err := netlink.LinkByName(name)
	b.must(err)
	if addr != "" {
		parsed, err := netlink.ParseAddr(addr)
		b.must(err)
		b.must(netlink.AddrAdd(l, parsed))
	}
	return l
}

// defaultRoute adds a default route through a link.
func (b *bench) defaultRoute(l netlink.Link, gw string, metric int) {
	b.Helper()
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gw), Priority: metric}))
}

func (b *bench) sysctl(key, value string) {
	b.Helper()
	b.must(os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0))
}

// fakeSysctl fakes values that a namespace cannot set.
func (b *bench) fakeSysctl(key, value string) {
	b.Helper()
	b.paths.Proc = filepath.Join(b.conf, "proc")
	file := filepath.Join(b.paths.Proc, "sys", key)
	b.must(os.MkdirAll(filepath.Dir(file), 0o700))
	b.must(os.WriteFile(file, []byte(value+"\n"), 0o600))
}

func TestChecksHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if c.ID == "" || c.Title == "" || c.Run == nil || seen[c.ID] || strings.ToLower(c.ID) != c.ID {
			t.Errorf("%+v", c)
		}
		seen[c.ID] = true
	}
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for id := range seen {
		if !strings.Contains(string(page), "| `"+id+"` |") {
			t.Errorf("docs/doctor.md does not tell of the check %s", id)
		}
	}
}

// A node with a network and an attachment, and no problem.
func TestHealthy(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.attach("pods", "c1")
	for _, c := range Checks() {
		b.healthy(c.ID)
	}
}

const pods = `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}},
	{"type":"firewall"}`

// A check without permission gives a warning, never a clean report.
func TestBlind(t *testing.T) {
	check := Check{ID: "x", Run: func(context.Context, *Node) ([]Finding, error) { return nil, unix.EPERM }}
	r := Examine(context.Background(), nil, []Check{check})
	if r.Worst() != Warning || !strings.Contains(r.Findings[0].What, "could not check: operation not permitted") {
		t.Errorf("%+v", r)
	}
}
