// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// huntFor is how long a hunter fires at a new pod.
const huntFor = 2500 * time.Millisecond

// hunter fires at each new pod of the cluster, from a pod, as soon as the kernel of the new pod's
// node has its route.
type hunter struct {
	node string
	from string // the path of a network namespace

	mu    sync.Mutex
	prey  []*prey
	fails []error
}

// prey is an address at which a hunter fires.
type prey struct {
	addr  string
	since time.Time
	fired []probe.Fired
}

// fireFrom fires from a namespace for a time, every ten milliseconds.
func (k *cluster) fireFrom(ns string, d time.Duration, targets ...string) ([]probe.Fired, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return k.fireNoted(ctx, ns, nil, targets...)
}

// fireNoted does so, and notes each connection.
func (k *cluster) fireNoted(ctx context.Context, ns string, note func(int, time.Time, bool), targets ...string) (fired []probe.Fired, err error) {
	var list []probe.Target
	for _, text := range targets {
		t, err := probe.ParseTarget(text)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return fired, within(ns, func() (err error) { fired, err = probe.Fire(ctx, 10*time.Millisecond, note, list...); return err })
}

// hunt makes the server of a node a hunter.
func (f *first) hunt(node string) *hunter {
	f.Helper()
	h := &hunter{node: node, from: f.podNS(f.servers[node])}
	done := make(chan struct{})
	f.Cleanup(func() { close(done) })
	for _, on := range f.nodes {
		ns, err := netns.GetFromName("kl-" + on)
		if err != nil {
			f.Fatal(err)
		}
		defer ns.Close()
		updates := make(chan netlink.RouteUpdate, 1000)
		if err := netlink.RouteSubscribeAt(ns, updates, done); err != nil {
			f.Fatal(err)
		}
		go h.follow(f, updates)
	}
	return h
}

// follow fires at the address of each new route to a pod.
func (h *hunter) follow(f *first, updates chan netlink.RouteUpdate) {
	for u := range updates {
		if u.Type != 24 || u.Dst == nil { // RTM_NEWROUTE
			continue
		}
		addr, _ := netip.AddrFromSlice(u.Dst.IP)
		addr = addr.Unmap()
		ones, bits := u.Dst.Mask.Size()
		if ones != bits || !podAddress(addr) || u.Table != 254 {
			continue
		}
		p := &prey{addr: addr.String(), since: time.Now()}
		h.mu.Lock()
		h.prey = append(h.prey, p)
		h.mu.Unlock()
		go h.fire(f, p)
	}
}

// podAddress reports whether an address belongs to the cluster's pods.
func podAddress(a netip.Addr) bool {
	return netip.MustParsePrefix("10.244.0.0/16").Contains(a) || netip.MustParsePrefix("fd00:244::/56").Contains(a)
}

func (h *hunter) fire(f *first, p *prey) {
	fired, err := f.fireFrom(h.from, huntFor, "tcp/"+hostPort(p.addr, probePort), "udp/"+hostPort(p.addr, probePort))
	h.mu.Lock()
	defer h.mu.Unlock()
	p.fired = fired
	if err != nil {
		h.fails = append(h.fails, err)
	}
}

// of returns what was fired at an address of a pod, and when it began.
func (h *hunter) of(addr string, pod time.Time) ([]probe.Fired, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.prey) - 1; i >= 0; i-- {
		if p := h.prey[i]; p.addr == addr && p.since.Before(pod) {
			return p.fired, p.since
		}
	}
	return nil, time.Time{}
}

// killAPI kills the API server, and returns its command line.
func (k *cluster) killAPI() []string {
	k.Helper()
	pid := k.pid("apiserver")
	text, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil {
		k.Fatal(err)
	}
	run(k.T, "kill", "-KILL", pid)
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// startAPI starts the API server again.
func (k *cluster) startAPI(command []string) {
	k.Helper()
	k.do(append([]string{"central", "apiserver"}, command...)...)
	eventually(k, "the API server is ready", func() error {
		out, err := exec.Command(k.script, "kubectl", "get", "--raw", "/readyz").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// proveOpens starts a pod that no policy selects while no agent runs. Its ADD cannot know its
// labels, so it is closed until the agent is back.
func (f *first) proveOpens() {
	f.Helper()
	f.ready(2*time.Minute, "nodes", "--all")
	f.apply(f.object("late", "n1", unrelated, []string{"/probe", "serve", ":8080"}))
	f.ready(2*time.Minute, "pod", "-n", "picky", "late")
	addr := strings.Fields(f.kubectl("get", "pod", "-n", "picky", "late", "-o", "jsonpath={.status.podIPs[*].ip}"))[0]
	ns := f.podNS(f.servers["n2"])
	asked := func(d time.Duration) probe.Fired {
		fired, err := f.fireFrom(ns, d, "tcp/"+hostPort(addr, probePort))
		if err != nil || fired[0].Sent == 0 {
			f.Fatal(fired, err)
		}
		return fired[0]
	}
	if got := asked(time.Second); got.Answers > 0 {
		f.Errorf("without an agent, a pod answers that a policy may select: %+v", got)
	}
	f.startAgent("n1")
	began := time.Now()
	eventually(f, "the agent opens the pod", func() error {
		if got := asked(100 * time.Millisecond); got.Answers == 0 {
			return fmt.Errorf("no answer to %d connections", got.Sent)
		}
		return nil
	})
	f.Logf("the pod is open %v after the agent was ready", time.Since(began).Round(time.Millisecond))
}
