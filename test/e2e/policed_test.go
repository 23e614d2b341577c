// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// refusing is a port of the server at which no program listens. The kernel answers there: a program
// on a busy machine can be too late to accept connections, and then the kernel drops them.
const refusing = 9

// policed is a cluster of two nodes in which a policy allows some pods to reach a server on n1:
// those of its namespace, or of a namespace with the label trusted=yes, that have the label role=friend.
type policed struct {
	*cluster
	nodes   []string
	targets []string // ports of the server
	allowed []*watch
	denied  []*watch
}

// newPoliced starts it, with a friend and a stranger on each node that try to connect all the time.
func newPoliced(t *testing.T, options ...string) *policed {
	t.Helper()
	p := &policed{cluster: newCluster(t, append([]string{"2", "containerd2=n2"}, options...)...), nodes: []string{"n1", "n2"}}
	p.agentAccount()
	for _, node := range p.nodes {
		p.importProbe(node)
		p.startAgent(node)
	}
	p.ready(2*time.Minute, "nodes", "--all")
	pods := []string{"server"}
	p.pod("server", "n1", 0)
	for _, node := range p.nodes {
		for _, role := range []string{"friend", "stranger"} {
			name := role + "-" + node
			p.pod(name, node, 0)
			p.kubectl("label", "pod", name, "role="+role)
			pods = append(pods, name)
		}
	}
	p.ready(2*time.Minute, "pods", "--all")
	p.proveMesh(pods...)
	p.guard()
	for _, addr := range p.addrs("server") {
		p.targets = append(p.targets, "tcp/"+hostPort(addr, refusing))
	}
	for _, node := range p.nodes {
		p.denied = append(p.denied, p.watch("stranger-"+node, false))
		p.allowed = append(p.allowed, p.watch("friend-"+node, true))
	}
	eventually(p, "the policy is in force", func() error { return p.rightSince(time.Now().Add(-2 * time.Second)) })
	p.forget()
	return p
}

// guard makes the server's policy.
func (p *policed) guard() {
	p.Helper()
	friend := object{"matchLabels": object{"role": "friend"}}
	p.apply(object{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": object{"name": "guard"},
		"spec": object{"podSelector": object{"matchLabels": object{"app": "server"}}, "ingress": []object{{"from": []object{
			{"podSelector": friend}, {"podSelector": friend, "namespaceSelector": object{"matchLabels": object{"trusted": "yes"}}},
		}}}},
	})
}

// rightSince returns an error if a connection was treated wrongly since then. Connections of the last
// second may still wait for their answer, so "since" must be longer ago.
func (p *policed) rightSince(since time.Time) error {
	for _, w := range append(p.allowed, p.denied...) {
		if sent, wrong, last := w.since(since); wrong > 0 || sent < 10 {
			return fmt.Errorf("%s: %d of %d connections were treated wrongly, the last one %v ago", w.from, wrong, sent, time.Since(last))
		}
	}
	return nil
}

// forget lets the counts of the connections begin now.
func (p *policed) forget() {
	for _, w := range append(p.allowed, p.denied...) {
		w.mu.Lock()
		w.sent, w.wrong, w.log, w.first, w.last = 0, 0, nil, time.Time{}, time.Time{}
		w.mu.Unlock()
	}
}

// prove ends the watches, and fails if a connection was treated wrongly.
func (p *policed) prove(what string) {
	p.Helper()
	time.Sleep(time.Second) // the last answers
	for _, w := range append(p.allowed, p.denied...) {
		w.mu.Lock()
		p.Logf("%s: connections of %s: %d, treated wrongly: %d", what, w.from, w.sent, w.wrong)
		if w.wrong > 0 || w.sent < 100 {
			p.Errorf("%s: %d of %d connections of %s were treated wrongly, from %s to %s",
				what, w.wrong, w.sent, w.from, w.first.Format(time.StampMilli), w.last.Format(time.StampMilli))
		}
		w.mu.Unlock()
	}
	p.forget()
}

// watch is a pod that tries to connect all the time.
type watch struct {
	from    string
	answers bool // it should get answers

	mu          sync.Mutex
	sent, wrong int
	log         []tried   // of the last minute
	first, last time.Time // when the first and the last connection was sent that was treated wrongly
}

// tried is a connection.
type tried struct {
	at    time.Time
	wrong bool
}

// watch lets a pod connect to the server each ten milliseconds, until the test ends.
func (p *policed) watch(from string, answers bool) *watch {
	p.Helper()
	w := &watch{from: from, answers: answers}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ns := p.podNS(from)
	go func() {
		_, err := p.fireNoted(ctx, ns, w.note, p.targets...)
		done <- err
	}()
	p.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.Errorf("%s: %v", from, err)
		}
	})
	return w
}

func (w *watch) note(_ int, at time.Time, answered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	wrong := answered != w.answers
	if wrong {
		if w.wrong++; w.wrong == 1 {
			w.first = at
		}
		w.last = at
	}
	if w.log = append(w.log, tried{at, wrong}); len(w.log) > 24000 {
		w.log = w.log[12000:]
	}
}

// since returns what was sent since then, and when the last connection was sent that was treated
// wrongly. Connections without an answer are known only after 0.9 seconds.
func (w *watch) since(t time.Time) (sent, wrong int, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.log {
		if c.at.Before(t) {
			continue
		}
		sent++
		if c.wrong {
			wrong++
			if c.at.After(last) {
				last = c.at
			}
		}
	}
	return sent, wrong, last
}

// metric returns the sum of a metric of a node's agent.
func (k *cluster) metric(node, name string) (sum float64) {
	k.Helper()
	text := k.node(node, "busybox", "wget", "-qO", "-", "http://127.0.0.1:9472/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			var value float64
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &value); err != nil {
				k.Fatalf("%s: %v", line, err)
			}
			sum += value
		}
	}
	return sum
}
