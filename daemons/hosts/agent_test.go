// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// fakeFabric keeps the input of its last call.
type fakeFabric struct {
	mu    sync.Mutex
	self  mesh.Self
	peers []mesh.Peer
	calls int
	key   mesh.Key
	late  int // how many calls find no underlay address yet
}

func (f *fakeFabric) Apply(_ context.Context, self mesh.Self, peers []mesh.Peer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.self, f.peers, f.calls = self, peers, f.calls+1
	return nil
}

func (f *fakeFabric) UplinkMTU([]netip.Addr) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late > 0 {
		f.late--
		return 0, errors.New("not yet")
	}
	return 1500, nil
}

// Encrypt returns the key that the test has set. Without one, the host cannot encrypt.
func (f *fakeFabric) Encrypt(context.Context) (mesh.Key, error) {
	if f.key == (mesh.Key{}) {
		return f.key, errors.New("this kernel has no WireGuard")
	}
	return f.key, nil
}

func (f *fakeFabric) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }
func (f *fakeFabric) Probe(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

// routes returns the blocks of the other hosts, with those hosts' names.
func (f *fakeFabric) routes() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		for _, b := range p.Blocks {
			out = append(out, b.String()+" "+p.Name)
		}
	}
	slices.Sort(out)
	return out
}

// host is one agent with its store, fabric, files and log.
type host struct {
	t      *testing.T
	name   string
	dir    string
	addr   netip.Addr
	store  store.Store
	fabric *fakeFabric
	agent  *Agent
	stop   func()
	log    lines
	late   int // the field late of fakeFabric
	key    mesh.Key
	real   Fabric // if not nil, the agent uses it instead
}

type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(s string) bool { return strings.Contains(s, part) })
}

func newHost(t *testing.T, s store.Store, n int) *host {
	h := &host{t: t, name: fmt.Sprint("host", n), dir: t.TempDir(), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), store: s}
	t.Cleanup(func() {
		if h.stop != nil {
			h.stop()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", h.name, strings.Join(h.log.all, "\n"))
		}
	})
	return h
}

func (h *host) start() {
	h.t.Helper()
	h.fabric = &fakeFabric{late: h.late, key: h.key}
	var fabric Fabric = h.fabric
	if h.real != nil {
		fabric = h.real
	}
	var err error
	h.agent, err = New(Options{
		Store: h.store, Name: h.name, Underlay: h.underlay(), ConfDir: h.dir + "/net.d", DataRoot: h.dir + "/docker-data",
		Paths: paths.Paths{State: h.dir + "/state", Run: h.dir + "/run", CNI: h.dir + "/cni", Proc: "/proc"}, TTL: time.Minute, Reclaim: 24 * time.Hour,
		Fabric: fabric, WirePort: wirePort, Log: h.log.add,
	})
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.agent.Run(ctx) }()
	h.stop = func() { cancel(); <-done; h.stop = nil }
}

func (h *host) conf(network string) string {
	data, err := os.ReadFile(filepath.Join(h.dir, "net.d", network+".conflist"))
	if err != nil {
		return ""
	}
	return string(data)
}

// block waits for a configuration and returns its first range.
func (h *host) block(network string) netip.Prefix {
	h.t.Helper()
	var conf string // read once: the agent may remove the file
	until(h.t, h.name+" has a configuration", func() bool { conf = h.conf(network); return conf != "" })
	list, err := chain.ParseList([]byte(conf))
	must(h.t, err)
	var b struct{ IPAM ipamConf }
	must(h.t, json.Unmarshal(list.Plugins[0].Raw, &b))
	return b.IPAM.Ranges[0][0].Subnet
}

// attach writes the files of a container as the driver does.
func (h *host) attach(id, network, addr, name string) {
	h.t.Helper()
	st, err := state.Open(h.dir+"/state", "docker")
	must(h.t, err)
	must(h.t, st.Networks.Save(&state.Network{ID: "net-" + network, Config: []byte(`{"name":"` + network + `","plugins":[]}`)}))
	must(h.t, st.Endpoints.Save(&state.Endpoint{
		ID: id, Network: "net-" + network, Phase: state.Joined, Name: name,
		Kernel: &state.Snapshot{MAC: "02:00:00:00:00:01", Addrs: prefixes(addr + "/24")},
	}))
	must(h.t, os.MkdirAll(h.dir+"/cni/networks/"+network, 0o755))
	must(h.t, os.WriteFile(h.dir+"/cni/networks/"+network+"/"+addr, []byte(id+"\r\neth0"), 0o644))
}

func (h *host) detach(id, network, addr string) {
	h.t.Helper()
	st, err := state.Open(h.dir+"/state", "docker")
	must(h.t, err)
	must(h.t, errors.Join(st.Endpoints.Drop(id), os.Remove(h.dir+"/cni/networks/"+network+"/"+addr)))
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}

func openStore(t *testing.T) store.Store {
	t.Helper()
	s := chaos.NewShared().Open()
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func lan() store.Network {
	return store.Network{Name: "lan", Subnets: prefixes("10.200.0.0/16"), BlockBits4: 24, Transport: store.Auto}
}

// endpointNames returns the names of the endpoints in the store.
func endpointNames(t *testing.T, s store.Store) (out []string) {
	t.Helper()
	all, _, err := list(t.Context(), s.Entries(), "")
	must(t, err)
	for _, e := range order.Values(all) {
		if !ofHost(&e) {
			out = append(out, strings.Join(e.Names, "+"))
		}
	}
	slices.Sort(out)
	return out
}

func TestThreeHosts(t *testing.T) {
	s := openStore(t)
	admin := Admin{s}
	must(t, admin.Create(t.Context(), lan()))
	var hosts []*host
	for n := range 3 {
		hosts = append(hosts, newHost(t, s, n+1))
		hosts[n].start()
	}
	var want []string
	for _, h := range hosts {
		want = append(want, h.block("lan").String()+" "+h.name)
	}
	for i, h := range hosts {
		others := slices.Delete(slices.Clone(want), i, i+1)
		slices.Sort(others)
		until(t, "routes to the others", func() bool { return slices.Equal(h.fabric.routes(), others) })
	}
	hosts[0].attach("e1", "lan", hosts[0].block("lan").Addr().Next().Next().String(), "web")
	until(t, "the name is published", func() bool { return slices.Equal(endpointNames(t, s), []string{"web"}) })
	if err := admin.Remove(t.Context(), "lan", false); err == nil || !strings.Contains(err.Error(), "web on host1") {
		t.Errorf("remove: %v", err)
	}
	must(t, admin.Remove(t.Context(), "lan", true))
	for _, h := range hosts {
		until(t, "configuration gone", func() bool { return h.conf("lan") == "" && len(h.fabric.routes()) == 0 })
	}
	until(t, "endpoints and blocks gone", func() bool {
		blocks, _, err := list(t.Context(), s.Blocks(), "")
		return err == nil && len(blocks) == 0 && len(endpointNames(t, s)) == 0
	})
}

func (h *host) underlay() []netip.Addr {
	if !h.addr.IsValid() {
		return nil
	}
	return []netip.Addr{h.addr}
}
