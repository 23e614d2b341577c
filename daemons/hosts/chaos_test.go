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
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// TestChaos takes agents through random schedules (package chaos). `make nightly` runs more of them.
func TestChaos(t *testing.T) {
	chaos.Run(t, 30, 100, 120, func(s *chaos.Schedule, dir string) chaos.World { return newCluster(s, dir) })
}

// cluster is some hosts, their store, and the networks that the operator wants.
type cluster struct {
	s      *chaos.Schedule
	dir    string
	store  *chaos.Store
	backup *chaos.Store
	client *chaos.Client // the operator's
	hosts  []*simHost
	wanted map[string]store.Network
	calm   bool
	inside bool  // within a call
	broken error // an invariant that a step broke
	laws
}

const reclaimAfter = 24 * time.Hour

// simHost is an agent, whose loops the test runs step by step, and the kernel of its host.
type simHost struct {
	chaos.Kernel
	c       *cluster
	name    string
	dir     string
	addr    netip.Addr
	client  *chaos.Client
	agent   *Agent
	up      bool              // its agent runs
	dead    bool              // the agent never runs again
	cut     bool              // it cannot reach the store
	live    bool              // the host's watches run
	at      [4]store.Revision // revisions of the watches
	links   *simLinks
	forget  bool // the operator forgot the host, so it does not come back
	left    bool
	clock   time.Duration // offset of the host's clock
	reached time.Time     // when the host last reached the store
}

func newCluster(s *chaos.Schedule, dir string) *cluster {
	c := &cluster{s: s, dir: dir, store: chaos.NewStore(), wanted: map[string]store.Network{}, laws: newLaws()}
	c.client = c.store.Client()
	c.client.Before = func(call string) (bool, error) { return false, c.meanwhile(nil, call) }
	c.create("lan", 0)
	c.create("few", 0)
	for range 2 + s.IntN(3) {
		c.join()
	}
	return c
}

func (c *cluster) join() {
	n := len(c.hosts) + 1
	h := &simHost{c: c, name: fmt.Sprint("host", n), dir: fmt.Sprintf("%s/%d", c.dir, n), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), links: &simLinks{}}
	c.hosts = append(c.hosts, h)
	check(os.MkdirAll(h.dir+"/state/hosts", 0o700))
	check(os.WriteFile(h.dir+"/state/hosts/"+identityFile, fmt.Appendf(nil, `{"id":"%016x"}`, c.s.Uint64()), 0o600))
	h.start()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (h *simHost) paths() paths.Paths {
	return paths.Paths{Run: h.dir + "/run", State: h.dir + "/state", CNI: h.dir + "/cni", Proc: "/proc"}
}

// start starts the agent with what is on disk.
func (h *simHost) start() {
	h.client = h.c.store.Client()
	h.client.Away, h.up, h.live = h.cut, true, false
	h.client.Before = func(call string) (bool, error) { return h.before(call) }
	h.client.Deleted = func(table, key string, data []byte) { h.c.deleted(h, table, key, data) }
	var err error
	h.agent, err = New(Options{
		Store: h.client, Name: h.name, Underlay: []netip.Addr{h.addr}, ConfDir: h.dir + "/net.d", DataRoot: h.dir + "/data",
		Paths: h.paths(), TTL: 10 * time.Second, Reclaim: reclaimAfter, Fabric: h,
		Log: func(format string, args ...any) { h.c.s.Say("  "+h.name+": "+format, args...) },
	})
	check(err)
	h.agent.mirror.changed = func() {}
	h.agent.mirror.onReadAgain(func() { h.live = false })
	h.agent.wall = func() time.Time { return time.Now().Add(h.clock) }
	h.agent.links = h.links.open
}

// stop kills the agent. Its session ends later.
func (h *simHost) stop() {
	check(h.client.Close())
	h.up = false
}

// before runs at the start of a call. Another host may make a step, or the store may be slow or
// answer too late.
func (h *simHost) before(call string) (made bool, err error) {
	h.c.claims(h, call)
	if err := h.c.meanwhile(h, call); err != nil {
		return false, err
	}
	if h.c.calm || !h.c.s.Chance(8) {
		return false, nil
	}
	return h.c.s.Chance(50), fmt.Errorf("%s: %w", call, context.DeadlineExceeded)
}

// meanwhile lets another host act within a call.
func (c *cluster) meanwhile(but *simHost, call string) error {
	if c.calm || c.inside || len(c.hosts) == 0 || !c.s.Chance(10) {
		return nil
	}
	c.inside = true
	defer func() { c.inside = false }()
	c.s.Say("  during %q", call)
	if o := c.hosts[c.s.IntN(len(c.hosts))]; o != but && o.up {
		o.step()
		return nil
	}
	if c.s.Chance(10) {
		c.trouble()
	}
	return nil
}

// step runs one of the agent's loops once.
func (h *simHost) step() {
	switch h.c.s.IntN(3) {
	case 0:
		h.follow(h.c.s.IntN(4), 1+h.c.s.IntN(6))
	case 1:
		h.tend()
	case 2:
		h.apply()
	}
}

// keep renews the host's sessions, as an agent does all the time.
func (h *simHost) keep() {
	h.client.Keep(h.agent.session)
	h.client.Keep(h.agent.long)
	if h.up && !h.cut && lasts(h.agent.long) {
		h.reached = time.Now()
	}
}

// lasts reports whether a session exists and is not over. A host whose session ended has lost
// its blocks before it comes back.
func lasts(l store.Session) bool {
	if l == nil {
		return false
	}
	select {
	case <-l.Lost():
		return false
	default:
		return true
	}
}

func (h *simHost) tend() {
	h.keep()
	if err := h.agent.tend(context.Background()); err != nil {
		h.c.s.Say("  %s tends: %v", h.name, err)
	}
}

func (h *simHost) apply() {
	h.agent.apply(context.Background(), true)
	if err := h.grantsHold(); err != nil {
		h.c.broken = err
	}
}

// follow reads the world, or applies some events of one table.
func (h *simHost) follow(table, most int) {
	m := &h.agent.mirror
	if !h.live {
		r, err := m.readSound(context.Background(), h.client)
		if r == nil {
			h.c.s.Say("  %s reads: %v", h.name, err)
			return
		}
		m.replace(r)
		h.at, h.live = r.at, true
		h.c.s.Say("  %s read at %s, missing: %v", h.name, r.at[last], m.lost())
		return
	}
	switch table {
	case 0:
		watchSome(h, h.client.Networks(), &m.networks, &h.at[0], most)
	case 1:
		watchSome(h, h.client.Nodes(), &m.nodes, &h.at[1], most)
	case 2:
		watchSome(h, h.client.Blocks(), &m.blocks, &h.at[2], most)
	case last:
		watchSome(h, h.client.Entries(), &m.endpoints, &h.at[last], most)
	}
}

func watchSome[T store.Object](h *simHost, t store.Table[T], into *doubt.Table[T], at *store.Revision, most int) {
	for e, err := range t.Watch(context.Background(), *at) {
		if err != nil {
			h.live = false
			h.c.s.Say("  %s: %v", h.name, err)
			return
		}
		change(&h.agent.mirror, into, e)
		if *at = at.With(e.Revision); most <= 1 {
			return
		}
		most--
	}
}

// Encrypt implements Fabric.
func (h *simHost) Encrypt(context.Context) (mesh.Key, error) {
	return mesh.Key{}, nil
}

// block returns the range of a host's configuration. If there is no configuration, the range is
// invalid.
func (h *simHost) block(network string) (p netip.Prefix) {
	data, err := os.ReadFile(filepath.Join(h.dir, "net.d", network+confSuffix))
	if err != nil {
		return p
	}
	_, rest, _ := strings.Cut(string(data), `"ranges"`)
	_, rest, _ = strings.Cut(rest, `"subnet": "`)
	text, _, _ := strings.Cut(rest, `"`)
	return netip.MustParsePrefix(text)
}

// create runs the operator's command. Each turn has other subnets.
func (c *cluster) create(name string, turn int) {
	subnet := map[string]string{"lan": "10.20%d.0.0/24", "net": "10.21%d.0.0/24", "few": "10.22%d.0.0/27"}[name]
	n := store.Network{Name: name, Subnets: prefixes(fmt.Sprintf(subnet, turn)), BlockBits4: 28, Transport: store.Auto}
	err := Admin{Store: c.client}.Create(context.Background(), n)
	if c.s.Say("  create %s %v: %v", name, n.Subnets, err); err == nil {
		c.wanted[name] = n
	}
}

func (c *cluster) remove(name string) {
	var err error
	c.wipe(func() { err = Admin{Store: c.client}.Remove(context.Background(), name, true) }) // the hosts' blocks have no record now
	if c.s.Say("  rm %s: %v", name, err); !errors.Is(err, store.ErrNotFound) {               // the network goes even if one of its blocks cannot be read
		delete(c.wanted, name)
		c.removed[name] = true
	}
}

// deleted checks that leave, forget and reclaim delete only what they may, also while a network is replaced: an
// agent deletes the blocks of the former network only if they are its own, or if their host may lose them.
func (c *cluster) deleted(h *simHost, table, key string, data []byte) {
	var b struct{ Object store.Block }
	if table == "blocks" && json.Unmarshal(data, &b) == nil && b.Object.Node != h.agent.ID() && !c.gone(h, b.Object) {
		c.broken = fmt.Errorf("%s deleted block %s of %s", h.name, key, b.Object.Node)
	}
}

func (c *cluster) some(of func(*simHost) bool) *simHost {
	all := slices.DeleteFunc(slices.Clone(c.hosts), func(h *simHost) bool { return !of(h) })
	if len(all) == 0 {
		return nil
	}
	return all[c.s.IntN(len(all))]
}
