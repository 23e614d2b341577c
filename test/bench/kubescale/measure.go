// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
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

func (b *bench) line(what, format string, args ...any) {
	fmt.Fprintf(&b.table, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	fmt.Fprintf(os.Stderr, "kubescale: %s: %s\n", what, fmt.Sprintf(format, args...))
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
	b.line(fmt.Sprintf("start to ready, %d Nodes", few), "%v", took.Round(time.Millisecond))
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
	b.line(fmt.Sprintf("start to ready, %d Nodes", b.nodes), "%v", took.Round(time.Millisecond))
	time.Sleep(settle)
	return b.memory(b.nodes, b.pods, "after a second start")
}

// routes waits until there is a route of each family to each other node.
func (b *bench) routes(nodes int) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
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
	b.line(fmt.Sprintf("RSS, %d Nodes, %d Pods %s", nodes, pods, when), "%.1f MB (%.1f MB anonymous; peak %.1f MB)", rss, anon, peak)
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
	b.line(fmt.Sprintf("a Node's appearance to both its routes, %d times", count), "p50 %v, p99 %v, worst %v",
		times[count/2].Round(time.Millisecond/10), times[count*99/100-1].Round(time.Millisecond/10), times[count-1].Round(time.Millisecond/10))
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

| what | measured |
| --- | --- |
%s`, b.nodes, b.pods, runtime.NumCPU(), &b.table)
}
