// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore restores the store of hosts from a backup by etcd's own program (test/labs/etcdutl).
package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/hosts/store/etcd"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

func TestMain(m *testing.M) {
	gate.Enter()
	nettest.Main(m)
}

// What was made after the backup does not count as removed, whichever revision the restored store has: the one of the backup, or
// the higher one that etcd's manual recommends. The unit tests of ADR 77 have a store that imitates this.
func TestRestored(t *testing.T) {
	for name, flags := range map[string][]string{
		"the backup's revision": nil,
		"a higher one":          {"--bump-revision", "1000000000", "--mark-compacted"}, // etcdutl takes only both
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{T: t, dir: t.TempDir()}
			h.start()
			h.create("lan", "10.200.0.0/16")
			before := h.knows("lan")
			h.stop()
			backup := h.backup()

			h.start()
			h.create("later", "10.201.0.0/16")
			h.sees("its own node, changed after the backup", func(w *world) bool { return w.has("later") && h.conf("later") != "" && w.node().after(before.Heard) })
			conf := h.conf("later")
			h.stop()
			h.restore(backup, flags)

			h.start()
			h.sees("the doubt", func(*world) bool { return h.logged("data of the store: it does not have network later") })
			if got := h.conf("later"); got != conf {
				t.Errorf("its configuration was %q, and is %q", conf, got)
			}
			if got := h.conf("lan"); got == "" {
				t.Error("the configuration of network lan is gone")
			}
			h.create("later", "10.201.0.0/16")
			h.sees("it again", func(w *world) bool { return w.Heard.after(before.Heard) && !h.lacks("later") })
			h.stop()
		})
	}
}

// host is a host with a store of its own.
type host struct {
	*testing.T
	dir   string
	store *etcd.Engine
	stop  func()

	mu  sync.Mutex
	log []string
}

func (h *host) start() {
	h.Helper()
	var err error
	if h.store, err = etcd.OpenAgent(h.Context(), "file://"+h.dir+"/store", ""); err != nil {
		h.Fatal(err)
	}
	a, err := hosts.New(hosts.Options{
		Store: h.store, Name: "one", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: h.dir + "/net.d", DataRoot: h.dir + "/docker",
		Paths: paths.Paths{State: h.dir + "/state", Run: h.dir + "/run", CNI: h.dir + "/cni", Proc: "/proc"}, TTL: time.Minute, Reclaim: 24 * time.Hour,
		Fabric: noFabric{}, Log: h.note,
	})
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := h.store.Close(); err != nil {
			h.Error(err)
		}
	})
	h.Cleanup(h.stop)
}

func (h *host) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *host) logs() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.log, "\n")
}

func (h *host) logged(part string) bool { return strings.Contains(h.logs(), part) }

func (h *host) create(name, subnet string) {
	h.Helper()
	n := store.Network{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, BlockBits4: 24, Transport: store.Auto}
	if err := (hosts.Admin{Store: h.store}).Create(h.Context(), n); err != nil {
		h.Fatal(err)
	}
}

func (h *host) conf(network string) string {
	data, _ := os.ReadFile(filepath.Join(h.dir, "net.d", network+".conflist")) // none if it does not exist
	return string(data)
}

// backup copies the database of a store that nobody serves.
func (h *host) backup() (file string) {
	h.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "store/etcd/member/snap/db"))
	file = filepath.Join(h.dir, "backup.db")
	if err := errors.Join(err, os.WriteFile(file, data, 0o600)); err != nil {
		h.Fatal(err)
	}
	return file
}

// restore replaces the files of the store, as etcd's manual says, by those that etcdutl makes of a backup.
func (h *host) restore(backup string, flags []string) {
	h.Helper()
	dir := filepath.Join(h.dir, "store/etcd")
	if err := os.Rename(dir, dir+".before"); err != nil {
		h.Fatal(err)
	}
	const self = "http://127.0.0.1:2380"
	cmd := exec.Command(reftest.Etcdutl(h), append([]string{"snapshot", "restore", backup, "--skip-hash-check", "--data-dir", dir, "--name", "one",
		"--initial-cluster", "one=" + self, "--initial-advertise-peer-urls", self, "--initial-cluster-token", "patchbay"}, flags...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// world is a part of what the agent remembers (docs/formats.md).
type world struct {
	Networks []struct{ Name string }
	Heard    revision
	Seen     map[string]revision
	Missing  struct{ Networks []struct{ Name string } }
}

type revision store.Revision

func (r revision) after(o revision) bool {
	n, _, err1 := store.Revision(r).Split()
	m, _, err2 := store.Revision(o).Split()
	return err1 == nil && err2 == nil && n > m
}

func (w *world) has(network string) bool {
	for _, n := range w.Networks {
		if n.Name == network {
			return true
		}
	}
	return false
}

// node returns the revision of this host's own node, which is the only one.
func (w *world) node() revision {
	for key, at := range w.Seen {
		if strings.HasPrefix(key, "nodes/") {
			return at
		}
	}
	return ""
}

// knows waits until the agent has a network, with its configuration.
func (h *host) knows(network string) *world {
	h.Helper()
	return h.sees("network "+network, func(w *world) bool { return w.has(network) && h.conf(network) != "" })
}

// lacks reports whether the store lacks a network that the agent has.
func (h *host) lacks(network string) bool {
	w, err := h.read()
	if err != nil {
		return true
	}
	for _, n := range w.Missing.Networks {
		if n.Name == network {
			return true
		}
	}
	return false
}

func (h *host) read() (*world, error) {
	w := new(world)
	data, err := os.ReadFile(filepath.Join(h.dir, "state/hosts/world.json"))
	if err == nil {
		err = json.Unmarshal(data, w)
	}
	return w, err
}

// sees waits until what the agent remembers is as wanted.
func (h *host) sees(what string, is func(*world) bool) *world {
	h.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		w, err := h.read()
		switch {
		case err == nil && is(w):
			return w
		case time.Now().After(end):
			h.Fatalf("not in a minute: %s: %+v, %v\n%s", what, w, err, h.logs())
		}
	}
}

// noFabric carries no packets.
type noFabric struct{}

func (noFabric) Apply(context.Context, mesh.Self, []mesh.Peer) error { return nil }
func (noFabric) UplinkMTU([]netip.Addr) (int, error)                 { return 1500, nil }
func (noFabric) Encrypt(context.Context) (mesh.Key, error) {
	return mesh.Key{}, errors.New("no WireGuard")
}
func (noFabric) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }
func (noFabric) Probe(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }
