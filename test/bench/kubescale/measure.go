// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// protocol is the protocol number of the agent's routes (RTPROT).
const protocol = 113

// bench is one run of the measurements.
type bench struct {
	options
	*cluster
	agent *agent
	wire  *wire
	added chan appeared
	table bytes.Buffer
}

// appeared is a route of the agent that appeared in the kernel.
type appeared struct {
	dst string
	at  time.Time
}

// These are the durations of the measurements.
const (
	settle = 5 * time.Second
	idle   = 20 * time.Second
)

// measure runs in the control plane's network, whose node is n1.
func measure(o options) (err error) {
	b := &bench{options: o, added: make(chan appeared, 10000)}
	dir := os.Getenv(dirEnv)
	admin := filepath.Join(dir, "cfg/admin.kubeconfig")
	if b.cluster, err = newCluster(admin); err != nil {
		return err
	}
	if b.wire, err = newWire("10.99.0.10:6443"); err != nil {
		return err
	}
	text, err := os.ReadFile(admin)
	if err != nil {
		return err
	}
	through := filepath.Join(dir, "cfg/agent.kubeconfig")
	text = bytes.ReplaceAll(text, []byte("10.99.0.10:6443"), []byte(b.wire.l.Addr().String()))
	if err := os.WriteFile(through, text, 0o600); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	if err := b.watch(done); err != nil {
		return err
	}
	if o.policies != "" {
		return b.allPolicies(dir, through)
	}
	if err := b.all(dir, through); err != nil {
		return err
	}
	fmt.Print(b.table.String())
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, b.page(), 0o644)
}

// watch notes each route of the agent that the kernel reports.
func (b *bench) watch(done chan struct{}) error {
	updates := make(chan netlink.RouteUpdate, 10000)
	if err := netlink.RouteSubscribe(updates, done); err != nil {
		return err
	}
	go func() {
		for u := range updates {
			if u.Protocol == protocol && u.Type == 24 { // RTM_NEWROUTE
				b.added <- appeared{u.Dst.String(), time.Now()}
			}
		}
	}()
	return nil
}

// These are the targets of docs/kubernetes.md.
const (
	maxRSS    = 30.0 // MB
	maxStart  = time.Second
	maxAppear = time.Second
)

// line adds a measurement without a target.
func (b *bench) line(what, format string, args ...any) {
	b.judge(what, "", fmt.Sprintf(format, args...))
}

// judge adds a measurement and, where there is a target, whether it is met.
func (b *bench) judge(what, verdict, measured string) {
	fmt.Fprintf(&b.table, "| %s | %s | %s |\n", what, measured, verdict)
	fmt.Fprintf(os.Stderr, "kubescale: %s: %s %s\n", what, measured, verdict)
}

// verdict says whether a value is at most its target.
func verdict[T cmp.Ordered](value, target T) string {
	if value > target {
		return fmt.Sprintf("**missed**, %v", target)
	}
	return fmt.Sprintf("met, %v", target)
}

func (b *bench) started(took time.Duration, nodes int) {
	b.judge(fmt.Sprintf("start to ready, %d Nodes", nodes), verdict(took, maxStart), took.Round(time.Millisecond).String())
}

func (b *bench) all(dir, kubeconfig string) (err error) {
	few := min(50, b.nodes)
	if err := b.register(1, few); err != nil {
		return err
	}
	var took time.Duration
	if b.agent, took, err = startAgent(dir, kubeconfig); err != nil {
		return err
	}
	defer func() { b.agent.stop() }()
	if err := b.routes(few); err != nil {
		return err
	}
	b.started(took, few)
	if err := b.rest(few, 0); err != nil {
		return err
	}
	if err := b.register(few+1, b.nodes); err != nil {
		return err
	}
	if err := b.routes(b.nodes); err != nil {
		return err
	}
	if err := b.rest(b.nodes, 0); err != nil {
		return err
	}
	began, before := time.Now(), b.wire.bytes.Load()
	if err := b.fill(b.pods, b.nodes); err != nil {
		return err
	}
	b.line(fmt.Sprintf("API bytes while %d Pods appear", b.pods), "%d, in %v", b.wire.bytes.Load()-before, time.Since(began).Round(time.Second))
	if err := b.rest(b.nodes, b.pods); err != nil {
		return err
	}
	if err := b.changes(); err != nil {
		return err
	}
	if err := b.appearances(); err != nil {
		return err
	}
	b.agent.stop()
	if b.agent, took, err = startAgent(dir, kubeconfig); err != nil {
		return err
	}
	b.started(took, b.nodes)
	time.Sleep(settle)
	return b.memory(b.nodes, b.pods, "after a second start")
}

// routes waits until there is a route of each family to each other node.
func (b *bench) routes(nodes int) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := nl.Retry(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil || len(list) == 2*(nodes-1) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d routes to %d nodes:\n%s", len(list), nodes, &b.agent.log)
		}
	}
}

// rest measures the agent while nothing happens.
func (b *bench) rest(nodes, pods int) error {
	time.Sleep(settle)
	before, err := b.agent.cpu()
	if err != nil {
		return err
	}
	bytes := b.wire.bytes.Load()
	time.Sleep(idle)
	after, err := b.agent.cpu()
	if err != nil {
		return err
	}
	b.line(fmt.Sprintf("CPU of %v at rest, %d Nodes, %d Pods", idle, nodes, pods), "%v (%.2f m)", (after - before).Round(time.Millisecond/10), 1000*(after-before).Seconds()/idle.Seconds())
	b.line(fmt.Sprintf("API bytes of %v at rest, %d Nodes, %d Pods", idle, nodes, pods), "%d", b.wire.bytes.Load()-bytes)
	return b.memory(nodes, pods, "")
}

func (b *bench) memory(nodes, pods int, when string) error {
	rss, err := b.agent.memory("VmRSS")
	if err != nil {
		return err
	}
	anon, err := b.agent.memory("RssAnon")
	if err != nil {
		return err
	}
	peak, err := b.agent.memory("VmHWM")
	what := strings.TrimSpace(fmt.Sprintf("RSS in MB, %d Nodes, %d Pods %s", nodes, pods, when))
	b.judge(what, verdict(rss, maxRSS), fmt.Sprintf("%.1f (%.1f anonymous; peak %.1f)", rss, anon, peak))
	return err
}

// changes counts the bytes and the CPU of changes that do not concern the agent.
func (b *bench) changes() error {
	const count = 200
	cpu, err := b.agent.cpu()
	if err != nil {
		return err
	}
	before := b.wire.bytes.Load()
	for i := range count {
		if err := b.beat(name(2 + i%(b.nodes-1))); err != nil {
			return err
		}
	}
	time.Sleep(3 * time.Second)
	after, err := b.agent.cpu()
	b.line("API bytes of one change of a Node's status", "%d", (b.wire.bytes.Load()-before)/count)
	b.line("CPU of one change of a Node's status", "%v", ((after - cpu) / count).Round(time.Microsecond))
	return err
}

// appearances measures the time from the request that creates a Node to the routes to it.
func (b *bench) appearances() error {
	const count = 100
	drain(b.added)
	var times []time.Duration
	before := b.wire.bytes.Load()
	for range count {
		began := time.Now()
		if err := b.register(b.nodes+1, b.nodes+1); err != nil {
			return err
		}
		at, err := b.both(b.nodes + 1)
		if err != nil {
			return err
		}
		times = append(times, at.Sub(began))
		if err := b.remove(name(b.nodes + 1)); err != nil {
			return err
		}
		if err := b.routes(b.nodes); err != nil {
			return err
		}
	}
	slices.Sort(times)
	b.line("API bytes of a Node's appearance and removal", "%d", (b.wire.bytes.Load()-before)/count)
	at := func(i int) time.Duration { return times[i].Round(time.Millisecond / 10) }
	b.judge(fmt.Sprintf("a Node's appearance to both its routes, %d times", count), "p99 "+verdict(at(count*99/100-1), maxAppear),
		fmt.Sprintf("p50 %v, p99 %v, worst %v", at(count/2), at(count*99/100-1), at(count-1)))
	return nil
}

// both waits for the routes of both families to a node.
func (b *bench) both(i int) (last time.Time, err error) {
	want := map[string]bool{}
	for _, text := range node(i).Spec.PodCIDRs {
		want[netip.MustParsePrefix(text).String()] = true
	}
	late := time.After(time.Minute)
	for len(want) > 0 {
		select {
		case r := <-b.added:
			if want[r.dst] {
				delete(want, r.dst)
				last = r.at
			}
		case <-late:
			return last, fmt.Errorf("no route to %v:\n%s", want, &b.agent.log)
		}
	}
	return last, nil
}

func drain(c chan appeared) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

// page returns the table, with a description of the machine.
func (b *bench) page() []byte {
	return fmt.Appendf(nil, `# The agent of a Kubernetes node

`+"`go run ./test/bench/kubescale`"+`, which `+"`make bench`"+` runs, wrote this page: one agent beside %d Nodes of 10 kB and %d Pods, as objects of a real API server
(test/labs/kube) without controllers. %d processors; the API server, etcd and the agent share them.

| what | measured | target |
| --- | --- | --- |
%s`, b.nodes, b.pods, runtime.NumCPU(), &b.table)
}
