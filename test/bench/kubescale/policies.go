// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// beside is what was measured beside a number of policies.
type beside struct {
	policies int
	p50, p99 map[string]time.Duration // by kind of change
	rss      float64
}

// These are the kinds of changes.
var changeKinds = []string{"the policy", "a label of the pod", "a label of its namespace"}

// These are the targets of network policies.
const (
	policyLatency = 200 * time.Millisecond // p99 at 1,000 policies
	policyRSS     = 60.0                   // MB
)

// allPolicies measures an agent beside each number of policies.
func (b *bench) allPolicies(dir, kubeconfig string) (err error) {
	if err := b.register(1, b.nodes); err != nil {
		return err
	}
	began := time.Now()
	if err := b.populate(b.pods, b.nodes); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "kubescale: %d pods made in %v\n", b.pods, time.Since(began).Round(time.Second))
	var all []beside
	var pair *pair
	made := 0
	for _, text := range strings.Split(b.policies, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if err := inParallel(n-made, func(i int) error { return b.policy(common(made + i)) }); err != nil {
			return err
		}
		made = max(made, n)
		one, err := b.besidePolicies(n, dir, kubeconfig, &pair)
		if err != nil {
			return fmt.Errorf("%d policies: %w", n, err)
		}
		all = append(all, one)
	}
	fmt.Print(b.table.String())
	if b.policiesOut == "" {
		return nil
	}
	if err := os.WriteFile(b.policiesOut+".svg", policySVG(all), 0o644); err != nil {
		return err
	}
	return os.WriteFile(b.policiesOut+".md", b.policyPage(), 0o644)
}

// besidePolicies starts an agent, and measures it.
func (b *bench) besidePolicies(n int, dir, kubeconfig string, shared **pair) (result beside, err error) {
	result = beside{policies: n, p50: map[string]time.Duration{}, p99: map[string]time.Duration{}}
	bytes := b.wire.bytes.Load()
	var took time.Duration
	if b.agent, took, err = startAgent(dir, kubeconfig); err != nil {
		return result, err
	}
	defer b.agent.stop()
	if *shared == nil {
		if *shared, err = newPair(b.cluster, dir); err != nil {
			return result, err
		}
	}
	if _, err := (*shared).verdict(true, time.Now()); err != nil {
		return result, fmt.Errorf("%w\n%s", err, &b.agent.log)
	}
	with := fmt.Sprintf("%d policies: ", n)
	b.line(with+"start to ready", "%v", took.Round(time.Millisecond))
	time.Sleep(settle)
	b.line(with+"API bytes of the start", "%.1f MB", float64(b.wire.bytes.Load()-bytes)/1e6)
	if err := b.flips(with, *shared, &result); err != nil {
		return result, fmt.Errorf("%w\n%s", err, &b.agent.log)
	}
	if err := b.adds(with+"ADD and DEL of a pod", *shared); err != nil {
		return result, err
	}
	if err := b.agent.stopped(func() error { return b.adds(with+"the same while the agent is stopped", *shared) }); err != nil {
		return result, err
	}
	if result.rss, err = b.agent.memory("VmRSS"); err != nil {
		return result, err
	}
	anon, err := b.agent.memory("RssAnon")
	if err != nil {
		return result, err
	}
	peak, err := b.agent.memory("VmHWM")
	b.judge(with+"RSS in MB", verdict(result.rss, policyRSS), fmt.Sprintf("%.1f (%.1f anonymous; peak %.1f)", result.rss, anon, peak))
	if err != nil {
		return result, err
	}
	return result, b.agentSays(with)
}

// flips measures changes of each kind.
func (b *bench) flips(with string, p *pair, result *beside) error {
	for _, kind := range changeKinds {
		cpu, err := b.agent.cpu()
		if err != nil {
			return err
		}
		bytes := b.wire.bytes.Load()
		var times []time.Duration
		for i := range b.options.changes {
			yes := i%2 == 1
			began := time.Now()
			if err := p.change(kind, yes); err != nil {
				return err
			}
			at, err := p.verdict(yes, began)
			if err != nil {
				return fmt.Errorf("change of %s: %w", kind, err)
			}
			times = append(times, at.Sub(began))
			time.Sleep(time.Duration(20+i%7*10) * time.Millisecond)
		}
		after, err := b.agent.cpu()
		if err != nil {
			return err
		}
		slices.Sort(times)
		count := len(times)
		result.p50[kind], result.p99[kind] = times[count/2], times[max(0, count*99/100-1)]
		at := func(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }
		text := fmt.Sprintf("p50 %v, p99 %v, worst %v; CPU %v, %d API bytes a change", at(result.p50[kind]), at(result.p99[kind]), at(times[count-1]),
			((after - cpu) / time.Duration(count)).Round(time.Millisecond/10), (b.wire.bytes.Load()-bytes)/int64(count))
		target := ""
		if result.policies <= 1000 {
			target = "p99 " + verdict(at(result.p99[kind]), policyLatency)
		}
		b.judge(with+"change of "+kind+" to the first packet", target, text)
	}
	return nil
}

// change changes what the server's policy says of the client.
func (p *pair) change(kind string, yes bool) error {
	labels := func(key, value string) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]string{key: value}}}
	}
	word := map[bool][2]string{true: {"friend", "yes"}, false: {"stranger", "no"}}[yes]
	switch kind {
	case changeKinds[0]:
		p.allow(yes)
		return p.replacePolicy(p.guard)
	case changeKinds[1]:
		return p.patch("pods", visitors, "client", labels("role", word[0]))
	default:
		return p.patch("namespaces", "", visitors, labels("trusted", word[1]))
	}
}

// adds measures ADDs and DELs of further pods, of which the API server does not know. Each of them makes a
// running agent compile a program, on the same processors.
func (b *bench) adds(what string, p *pair) error {
	const count = 60
	rt := p.runtime(space(0), "passing", "11111111-2222-3333-4444-555555555555")
	rt.ContainerID, rt.NetNS = "bench-passing", "/run/netns/passing"
	if out, err := exec.Command("ip", "netns", "add", "passing").CombinedOutput(); err != nil {
		return fmt.Errorf("make a namespace: %w: %s", err, out)
	}
	defer exec.Command("ip", "netns", "del", "passing").Run()
	var add, del []time.Duration
	for range count {
		began := time.Now()
		if _, err := p.cni.AddNetworkList(context.Background(), p.list, rt); err != nil {
			return err
		}
		add = append(add, time.Since(began))
		began = time.Now()
		if err := p.cni.DelNetworkList(context.Background(), p.list, rt); err != nil {
			return err
		}
		del = append(del, time.Since(began))
	}
	slices.Sort(add)
	slices.Sort(del)
	at := func(d time.Duration) time.Duration { return d.Round(time.Microsecond * 10) }
	b.line(what, "p50 %v and %v, p95 %v and %v", at(add[count/2]), at(del[count/2]), at(add[count*95/100]), at(del[count*95/100]))
	return nil
}

// agentSays copies from the agent's metrics how long its programs took.
func (b *bench) agentSays(with string) error {
	resp, err := http.Get("http://127.0.0.1:9472/metrics")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	sums, counts := map[string]float64{}, map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil || !strings.Contains(name, "polic") {
			continue
		}
		if base, ok := strings.CutSuffix(name, "_sum"); ok {
			sums[base] = number
		} else if base, ok := strings.CutSuffix(name, "_count"); ok {
			counts[base] = number
		}
	}
	for name, n := range counts {
		if n > 0 {
			b.line(with+"`"+name+"`", "%.0f times, mean %.1f ms", n, 1000*sums[name]/n)
		}
	}
	return nil
}

// policyPage returns the table, with a description of the machine.
func (b *bench) policyPage() []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Network policies of a large cluster\n\n`go run ./test/bench/kubescale -policies %s` wrote this page: one agent beside %d Nodes, %d Pods in %d namespaces and "+
		"network policies of five common kinds, as objects of a real API server (test/labs/kube) without controllers. %d processors; the API server, etcd and the agent share them.\n\n"+
		"A pod of the node tries to connect to another one each millisecond. The time of a change begins with the request to the API server and ends with the first of three "+
		"connections in a row with the new verdict. There were %d changes of each kind beside each number of policies, half of them closed and half opened.\n\n"+
		"![p50 and p99 of a change, and memory](kube-policies.svg)\n\n| what | measured | target |\n| --- | --- | --- |\n%s", b.policies, b.nodes, b.pods, spaces, runtime.NumCPU(), b.options.changes, &b.table)
	return text.Bytes()
}
