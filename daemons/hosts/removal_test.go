// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
)

func TestRemoval(t *testing.T) {
	unread := map[string]error{"lan": fmt.Errorf("%w: EIO", errUnread), "home": errors.New("it overlaps")}
	remembered, whole, doubtful := mayRemove(false, nil), mayRemove(true, nil), mayRemove(true, unread)
	there := func(endpoint string) bool { return endpoint == "e1" }
	all, some := &removal{whole: true, complete: true, hasFile: there}, &removal{whole: true, hasFile: there}
	for about, c := range map[string]struct{ got, want bool }{
		"of a world that is remembered":                        {remembered.network("lan"), false},
		"of a whole world":                                     {whole.network("lan"), true},
		"of a network that could not be looked at":             {doubtful.network("lan"), false},
		"of one that this host takes no part in":               {doubtful.network("home"), true},
		"of one beside it":                                     {doubtful.network("other"), true},
		"sets, by a world that is remembered":                  {remembered.sets(), true},
		"sets, by a whole world":                               {whole.sets(), true},
		"sets, when one network could not be looked at":        {doubtful.sets(), false},
		"a container's endpoint, of a world that is whole":     {all.endpoint(&store.Entry{ID: "e1.run"}), true},
		"one whose file could not be read":                     {some.endpoint(&store.Entry{ID: "e1.run"}), false},
		"one whose file is gone":                               {some.endpoint(&store.Entry{ID: "e2.run"}), true},
		"presence":                                             {some.endpoint(&store.Entry{ID: "host.run", Network: presence}), true},
		"a container's endpoint, of a world that is not whole": {(&removal{complete: true}).endpoint(&store.Entry{ID: "e1.run"}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", about, c.got)
		}
	}
}

// The file of an endpoint cannot be read any more. The endpoint keeps its name, in the store too,
// and also after a restart of the agent. An endpoint whose file was removed loses its name.
func TestUnreadableEndpointStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t)
		must(t, Admin{s}.Create(t.Context(), lan()))
		h := newHost(t, s, 1)
		h.start()
		block := h.block("lan")
		addr := block.Addr().Next()
		attach := func(id, name string) {
			addr = addr.Next()
			h.attach(id, "lan", addr.String(), name)
			until(t, name+" is published", func() bool { return slices.Contains(endpointNames(t, s), name) })
		}
		attach("e1", "web")
		attach("e2", "db")
		file := filepath.Join(h.dir, "state/docker/endpoints/e1")
		must(t, os.WriteFile(file, []byte("{"), 0o600))
		until(t, "it is logged", func() bool { return h.log.has("docker: read state") })
		attach("e3", "after") // two more rounds, although all removals happen in the first
		attach("e4", "again")
		if got := endpointNames(t, s); !slices.Contains(got, "web") {
			t.Errorf("names are %v", got)
		}
		h.stop()
		h.start()
		attach("e5", "started")
		attach("e6", "later")
		if got := endpointNames(t, s); !slices.Contains(got, "web") || h.log.has("another host has the id") {
			t.Errorf("names are %v after a start", got)
		}
		must(t, os.Remove(file))
		until(t, "it is gone", func() bool { return !slices.Contains(endpointNames(t, s), "web") })
	})
}

// Files of Docker that cannot be read keep their known content.
func TestReadKeepsWhatCannotBeRead(t *testing.T) {
	d := docker{state: t.TempDir(), data: t.TempDir()}
	st, err := state.Open(d.state, "docker")
	must(t, err)
	must(t, st.Networks.Save(&state.Network{ID: "n", Config: []byte(`{"name":"lan"}`)}))
	for _, id := range []string{"e1", "e2"} {
		must(t, st.Endpoints.Save(&state.Endpoint{ID: id, Network: "n", Phase: state.Joined, Kernel: &state.Snapshot{}}))
	}
	read := func(about string, fails bool, want ...string) {
		t.Helper()
		all, _, err := d.read()
		var got []string
		for _, c := range all {
			got = append(got, c.ID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || (err != nil) != fails {
			t.Errorf("%s: %v %v", about, got, err)
		}
	}
	read("all", false, "e1", "e2")
	must(t, os.WriteFile(filepath.Join(d.state, "docker/networks/n"), []byte("{"), 0o600))
	read("without the network", true, "e1", "e2")
	must(t, os.WriteFile(filepath.Join(d.state, "docker/endpoints/e1"), []byte("{"), 0o600))
	read("without either", true, "e1", "e2")
	must(t, os.Remove(filepath.Join(d.state, "docker/endpoints/e1")))
	read("with one gone", true, "e2")
}

// An endpoint was unreadable at the agent's start. It belongs to no known container, and keeps
// its record in the store. The removal of its file starts the loops, although no container
// changes.
func TestUnreadableGone(t *testing.T) {
	n := lan()
	h, a := stillAgent(t, &n)
	dir := filepath.Join(h.dir, "docker/endpoints")
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.MkdirAll(filepath.Join(h.dir, "docker/networks"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "e1"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "e2"), []byte("{"), 0o600))
	for _, c := range []struct {
		about   string
		removed string
		changed bool
	}{{"unreadable", "", true}, {"still", "", false}, {"one is gone", "e1", true}, {"all are gone", "e2", true}, {"nothing", "", false}} {
		if c.removed != "" {
			must(t, os.Remove(filepath.Join(dir, c.removed)))
		}
		if got := a.readDocker(); got != c.changed {
			t.Errorf("%s: changed is %v", c.about, got)
		}
	}
}

// stillAgent returns an agent that does not run, in a world of two hosts.
func stillAgent(t *testing.T, n *store.Network) (*host, *Agent) {
	t.Helper()
	h := newHost(t, openStore(t), 1)
	h.fabric = &fakeFabric{}
	a, err := New(Options{
		Store: h.store, Name: h.name, Underlay: []netip.Addr{h.addr}, ConfDir: h.dir, Fabric: h.fabric, Log: h.log.add,
		Paths: paths.Paths{State: h.dir, Run: h.dir, CNI: h.dir, Proc: "/proc"}, TTL: time.Minute, Reclaim: time.Hour,
	})
	must(t, err)
	a.mirror.synced = true
	a.mirror.networks.Put(n.Name, *n)
	a.mirror.nodes.Put("b", store.Node{ID: "b", Name: "b", VTEP: mesh.VTEP("b").String()})
	for i, node := range []string{a.ID(), "b"} {
		b := store.Block{Network: n.Name, Node: node, Prefix: prefix(fmt.Sprintf("10.200.%d.0/24", i+3))}
		a.mirror.blocks.Put(b.Key(), b)
	}
	a.mirror.cache.Own = map[string][]netip.Prefix{n.Name: prefixes("10.200.3.0/24")}
	return h, a
}

// A host cannot read whether it conflicts with a network. It does not change the routes to the
// other hosts, because containers of the network may run.
func TestUnreadHostKeepsRoutes(t *testing.T) {
	n := lan()
	n.Subnets, n.BlockBits6 = append(n.Subnets, prefix("fd00:200::/48")), 64 // the second subnet is new
	h, a := stillAgent(t, &n)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	for _, files := range []uint64{limit.Cur, 0} {
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: limit.Max}))
		a.apply(t.Context(), true)
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if got := h.fabric.routes(); !slices.Equal(got, []string{"10.200.4.0/24 b"}) {
			t.Errorf("with %d files: routes are %v", files, got)
		}
	}
	if !h.log.has("this host's links and addresses cannot be read") {
		t.Errorf("it says %q", h.log.all)
	}
}

// remembering is a fabric that is killed, with its agent, right after it has set the
// routes.
type remembering struct {
	*fakeFabric
	dir  string
	next mirror // what the next agent loads
}

func (f *remembering) Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error {
	f.next = mirror{}
	return errors.Join(f.fakeFabric.Apply(ctx, self, peers), f.next.load(f.dir))
}

// An agent was killed right after it had set a route. It starts again while the store is away. It
// knows the route and leaves it.
func TestRoutesAreRemembered(t *testing.T) {
	n := lan()
	h, a := stillAgent(t, &n)
	f := &remembering{fakeFabric: h.fabric, dir: a.dir}
	a.fabric.Mesh = f
	a.apply(t.Context(), true)
	w, known, synced := f.next.snapshot()
	_, peers := meshOf(&w, &thisHost{self: store.Node{ID: a.ID()}}, []part{{plan: plan{Network: n, Blocks: prefixes("10.200.3.0/24")}}})
	if !known || synced || len(peers) != 1 || peers[0].ID != "b" {
		t.Errorf("known %v, synced %v, peers %v", known, synced, peers)
	}
}
