// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// TestChaos takes agents and their API server through random schedules (package chaos). The API server is restored
// from backups, lists only some Nodes, or none. Machines come and go, and are registered again with other podCIDRs.
func TestChaos(t *testing.T) {
	chaos.Run(t, 30, 100, 120, func(s *chaos.Schedule, dir string) chaos.World {
		c := &chaosCluster{s: s, dir: dir, api: map[string]*corev1.Node{}}
		for range 2 + s.IntN(3) {
			c.join()
		}
		return c
	})
}

// chaosCluster is an API server and the machines of its Nodes.
type chaosCluster struct {
	s        *chaos.Schedule
	dir      string
	api      map[string]*corev1.Node
	backup   map[string]*corev1.Node
	machines []*machine
	podCIDRs int
	calm     bool
}

// machine is a Kubernetes node, whose agent the test runs step by step.
type machine struct {
	chaos.Kernel
	c      *chaosCluster
	name   string
	node   *corev1.Node // as its kubelet registers it
	had    map[netip.Prefix]bool
	agent  *Agent
	gone   bool // the operator has removed the machine and its Node
	cut    bool // it cannot reach the API server
	live   bool // its watch runs
	events []func(*mirror) error
	before map[netip.Prefix]netip.Addr
	ready  bool

	missed map[string]time.Time // since when a list lacks a Node
	saved  map[string]time.Time // the same when the agent last saved it
}

func (c *chaosCluster) join() {
	i := len(c.machines) + 1
	m := &machine{c: c, name: fmt.Sprint("n", i), had: map[netip.Prefix]bool{}}
	c.machines = append(c.machines, m)
	m.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, CreationTimestamp: metav1.Now()}}
	m.node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: m.addr().String()}}
	m.register(true)
	m.start()
}

func (m *machine) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(slices.Index(m.c.machines, m) + 1)})
}

// register creates the machine's Node, with another podCIDR or the same.
func (m *machine) register(other bool) {
	if m.node = m.node.DeepCopy(); other {
		m.c.podCIDRs++
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(m.c.podCIDRs), 0}), 24)
		m.node.Spec.PodCIDRs, m.had[p] = []string{p.String()}, true
	}
	m.node.UID = types.UID(fmt.Sprint(m.c.s.Uint64()))
	m.c.set(m.node)
}

func (c *chaosCluster) set(n *corev1.Node) {
	c.api[n.Name] = n
	c.tell(func(m *machine) func(*mirror) error {
		return func(to *mirror) error { delete(m.missed, n.Name); return to.Update(n) }
	})
}

func (c *chaosCluster) remove(name string) {
	n := c.api[name]
	delete(c.api, name)
	if n != nil {
		c.tell(func(*machine) func(*mirror) error { return func(to *mirror) error { return to.Delete(n) } })
	}
}

// tell queues an event for each watch.
func (c *chaosCluster) tell(event func(*machine) func(*mirror) error) {
	for _, m := range c.machines {
		if m.live {
			m.events = append(m.events, event(m))
		}
	}
}

// start starts the agent with what is on disk.
func (m *machine) start() {
	dir := m.c.dir + "/" + m.name
	var err error
	m.agent, err = New(Options{
		Settings: plan.Settings{Node: m.name, Transport: mesh.Auto, Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		Fabric:   &m.Kernel, Paths: paths.Paths{State: dir, Run: dir, CNI: dir, Proc: "/proc"}, ConfDir: dir + "/net.d",
		NetworkPolicy: NetworkPolicy{Off: true}, Log: func(format string, args ...any) { m.c.s.Say("  "+m.name+": "+format, args...) },
	})
	if err != nil {
		panic(err)
	}
	m.agent.trim = time.Now().Add(1e6 * time.Hour) // it would collect the garbage of all schedules
	m.live, m.events, m.missed = false, nil, maps.Clone(m.saved)
	if m.missed == nil {
		m.missed = map[string]time.Time{}
	}
}

// follow lists all Nodes, or handles some events of the watch.
func (m *machine) follow(most int) {
	if m.cut {
		return
	}
	if !m.live {
		m.list()
		return
	}
	for range min(most, len(m.events)) {
		if err := m.events[0](&m.agent.mirror); err != nil {
			panic(err)
		}
		m.events = m.events[1:]
	}
}

// list gives the mirror a list, which may lack Nodes.
func (m *machine) list() {
	var list []any
	there, partial := map[string]bool{}, !m.c.calm && m.c.s.Chance(25)
	for _, name := range slices.Sorted(maps.Keys(m.c.api)) {
		if !partial || m.c.s.Chance(60) {
			list, there[name] = append(list, m.c.api[name]), true
			delete(m.missed, name)
		}
	}
	err := m.agent.mirror.Replace(list, "")
	m.live, m.events = err == nil, nil
	m.c.s.Say("  %s lists %v: %v", m.name, slices.Sorted(maps.Keys(there)), err)
	for _, o := range m.c.machines {
		if err == nil && !there[o.name] && m.missed[o.name].IsZero() {
			m.missed[o.name] = time.Now()
		}
	}
}

func (m *machine) apply() {
	m.agent.apply(context.Background(), true)
	m.saved = maps.Clone(m.missed)
}

// Actions implements chaos.World.
func (c *chaosCluster) Actions() []chaos.Action {
	on := func(name string, weight int, do func(*machine)) chaos.Action {
		return chaos.Action{Name: name, Weight: weight, Do: func() {
			m := c.machines[c.s.IntN(len(c.machines))]
			c.s.Say("  %s", m.name)
			do(m)
		}}
	}
	return []chaos.Action{
		on("follow", 30, func(m *machine) { m.follow(1 + c.s.IntN(4)) }),
		on("apply", 30, (*machine).apply),
		on("restart the agent", 4, (*machine).start),
		on("cut or join", 4, func(m *machine) { m.cut = !m.cut }),
		on("end the watch", 6, func(m *machine) { m.live, m.events = false, nil }),
		on("lose fields", 3, func(m *machine) { c.lose(m) }),
		on("restart the kubelet", 6, func(m *machine) { c.kubelet(m) }),
		on("remove", 2, func(m *machine) { m.gone = true; c.remove(m.name) }),
		{Name: "add", Weight: 2, Do: func() {
			if len(c.machines) < 7 {
				c.join()
			}
		}},
		{Name: "back up", Weight: 3, Do: func() { c.backup = maps.Clone(c.api) }},
		{Name: "restore", Weight: 3, Do: c.restore},
		{Name: "pass", Weight: 20, Do: func() { c.s.Pass(time.Duration(c.s.IntN(int(20 * time.Minute)))) }},
	}
}

// lose takes the podCIDRs of a Node, and perhaps its addresses.
func (c *chaosCluster) lose(m *machine) {
	if n := c.api[m.name]; n != nil {
		n = n.DeepCopy()
		if n.Spec.PodCIDRs = nil; c.s.Chance(50) {
			n.Status.Addresses = nil
		}
		c.set(n)
	}
}

// kubelet registers a Node that the API server lacks. The controller may give it another podCIDR.
func (c *chaosCluster) kubelet(m *machine) {
	if !m.gone && c.api[m.name] == nil {
		m.register(c.s.Chance(30) && len(m.had) < 8) // an agent remembers eight
	}
}

// restore takes the API server back to the backup. No watch can continue.
func (c *chaosCluster) restore() {
	if c.backup == nil {
		return
	}
	c.api = maps.Clone(c.backup)
	for _, m := range c.machines {
		m.live, m.events = false, nil
	}
}

// Laws implements chaos.World. Whatever the API server says, an agent keeps the network of its own pods and the
// routes to machines in use. If lists lack a machine, the agent keeps its route for an hour.
func (c *chaosCluster) Laws() error {
	var errs []error
	for _, m := range c.machines {
		err := m.Stays(m.before, func(_ netip.Prefix, via netip.Addr) bool {
			peer := c.machines[via.As4()[3]-1]
			since, missed := m.missed[peer.name]
			return peer.gone || missed && time.Since(since) >= grace
		})
		m.before = m.Now()
		_, none := os.Stat(filepath.Join(m.agent.opts.ConfDir, podnet.File))
		if m.ready = m.ready || none == nil; m.ready && none != nil {
			err = errors.Join(err, none)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return errors.Join(errs...)
}

// Calm implements chaos.World. All Nodes are what they should be, and an hour later each agent has exactly their routes.
func (c *chaosCluster) Calm() error {
	c.calm = true
	for _, m := range c.machines {
		if m.cut = false; m.gone {
			c.remove(m.name)
		} else {
			c.set(m.node)
		}
	}
	for range 2 {
		for _, m := range c.machines {
			m.live = false
			m.follow(0)
			m.apply()
		}
		c.s.Pass(grace + time.Minute)
	}
	var errs []error
	for _, m := range c.machines {
		m.apply()
		if !m.gone {
			errs = append(errs, m.agrees())
		}
	}
	return errors.Join(append(errs, c.Laws())...)
}

// agrees compares the routes with the Nodes. A machine keeps routes to former podCIDRs of others.
func (m *machine) agrees() error {
	if err := m.agent.Ready(); err != nil {
		return fmt.Errorf("%s is not ready: %w", m.name, err)
	}
	for _, o := range m.c.machines {
		if o == m || o.gone {
			continue
		}
		if p := netip.MustParsePrefix(o.node.Spec.PodCIDRs[0]); m.Routes[p] != o.addr() {
			return fmt.Errorf("%s has no route to %s of %s, but %v", m.name, p, o.name, m.Routes[p])
		}
	}
	for block, via := range m.Routes {
		if o := m.c.machines[via.As4()[3]-1]; o.gone || !o.had[block] {
			return fmt.Errorf("%s has a route to %s by %s, which nobody needs", m.name, block, o.name)
		}
	}
	return nil
}
