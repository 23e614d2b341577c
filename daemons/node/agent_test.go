// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// patience limits how long a test waits for a condition.
const patience = 60 * time.Second

// fakeFabric is a mesh that notes what the agent applies.
type fakeFabric struct {
	mu      sync.Mutex
	applies int
	self    mesh.Self
	peers   []mesh.Peer
	mtu     int
	fail    error

	probe func(ctx context.Context, changed func()) error
}

func (f *fakeFabric) Apply(_ context.Context, self mesh.Self, peers []mesh.Peer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applies++
	f.self, f.peers = self, peers
	return f.fail
}

func (f *fakeFabric) UplinkMTU([]netip.Addr) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mtu == 0 {
		return 0, errors.New("underlay address is on no link of this host")
	}
	return f.mtu, nil
}

func (*fakeFabric) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (f *fakeFabric) Probe(ctx context.Context, changed func()) error {
	if f.probe != nil {
		return f.probe(ctx, changed)
	}
	<-ctx.Done()
	return nil
}

// applied counts the calls of Apply.
func (f *fakeFabric) applied() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applies
}

// peerList returns the peers that the agent applied last, as text.
func (f *fakeFabric) peerList() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, p := range f.peers {
		out = append(out, fmt.Sprintf("%s=%v", p.ID, p.Blocks[0]))
	}
	slices.Sort(out) // a Node that is missing comes last
	return strings.Join(out, " ")
}

// lab is an agent of node n1 with an API server.
type lab struct {
	*testing.T
	api    *apiServer
	fabric *fakeFabric
	dir    string
	later  atomic.Int64  // how far the mirror's clock is ahead
	absent time.Duration // Agent.policy.absent; 0: short

	impatient bool                         // Agent.policy.patience is 0
	looks     *atomic.Int32                // counts what Agent.policy.look does; nil: it is not counted
	again     time.Duration                // Agent.retry; 0: short
	next      *atomic.Pointer[rest.Config] // Options.Config of an agent that asks there
	*Agent
	stop func()
}

func newLab(t *testing.T, nodes ...int) *lab {
	l := &lab{T: t, api: newAPIServer(t), fabric: &fakeFabric{mtu: 1500}, dir: t.TempDir()}
	for _, i := range nodes {
		l.api.set(kubeNode(i))
	}
	return l
}

func (l *lab) options() Options {
	return Options{
		Settings: plan.Settings{Node: "n1", Transport: mesh.Auto, Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}},
		Config:   l.api.config, Fabric: l.fabric, Paths: paths.Paths{State: l.dir, Run: l.dir, CNI: l.dir}, ConfDir: filepath.Join(l.dir, "net.d"), Log: l.Logf,
	}
}

// start starts a new agent on the lab's files.
func (l *lab) start(change ...func(*Options)) {
	l.Helper()
	o := l.options()
	var log sync.Mutex
	ended := false
	o.Log = func(format string, args ...any) {
		log.Lock()
		defer log.Unlock()
		if !ended {
			l.Logf(format, args...)
		}
	}
	for _, c := range change {
		c(&o)
	}
	a, err := New(o)
	if err != nil {
		l.Fatal(err)
	}
	a.mirror.now = func() time.Time { return time.Now().Add(time.Duration(l.later.Load())) }
	a.trim = time.Now().Add(time.Hour) // it would collect the garbage of all tests; TestProgram gives memory back
	a.exempt.every = time.Millisecond
	a.retry, a.api.retry = cmp.Or(l.again, 100*time.Millisecond), 20*time.Millisecond
	a.policy.absent = cmp.Or(l.absent, 100*time.Millisecond)
	a.services.absent = a.policy.absent
	if l.impatient {
		a.policy.patience = 0
	}
	if look := a.policy.cutConnections; l.looks != nil {
		a.policy.cutConnections = func(c *enforce.Cut, update func(*enforce.Cut)) error { l.looks.Add(1); return look(c, update) }
	}
	l.Agent = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	l.stop = func() {
		cancel()
		<-done
		log.Lock()
		defer log.Unlock()
		ended = true
	}
	l.Cleanup(l.stop)
}

// await polls until a condition holds, less and less often: some conditions run a program.
func (l *lab) await(what string, holds func() bool) {
	l.Helper()
	end := time.Now().Add(patience)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 32*time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("not within %v: %s; peers %q, problems %v", patience, what, l.fabric.peerList(), l.trouble.problems.All())
		}
		time.Sleep(pause)
	}
}

func (l *lab) awaitPeers(want string) {
	l.Helper()
	l.await("peers "+want, func() bool { return l.fabric.peerList() == want })
}

func (l *lab) awaitProblem(reason plan.Reason) {
	l.Helper()
	l.await("problem "+string(reason), func() bool { return l.trouble.mine()[reason] != "" })
}

// pass moves the mirror's clock.
func (l *lab) pass(d time.Duration) {
	l.later.Add(int64(d))
	resident.Signal(l.nodes)
}

// conf returns the content of the network's file.
func (l *lab) conf() string {
	data, _ := os.ReadFile(filepath.Join(l.dir, "net.d", podnet.File))
	return string(data)
}

const n2, n3 = "n2=10.244.2.0/24", "n3=10.244.3.0/24"

// A new Node gets routes, a deleted Node loses them, and the network's file is written once.
func TestFollow(t *testing.T) {
	l := newLab(t, 1, 2)
	l.start()
	l.awaitPeers(n2)
	l.await("ready", func() bool { return l.Ready() == nil })
	if !strings.Contains(l.conf(), `"subnet": "10.244.1.0/24"`) || !strings.Contains(l.conf(), `"mtu": 1430`) {
		t.Error(l.conf())
	}
	l.api.set(kubeNode(3))
	l.awaitPeers(n2 + " " + n3)
	l.api.remove("n2", false)
	l.awaitPeers(n3)
	moved := kubeNode(3)
	moved.Status.Addresses[0].Address = "192.0.2.33"
	l.api.set(moved)
	l.await("the new address", func() bool {
		l.fabric.mu.Lock()
		defer l.fabric.mu.Unlock()
		return l.fabric.peers[0].Underlay[0] == netip.MustParseAddr("192.0.2.33")
	})
}
