// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"time"
)

// flowing sends a datagram each 10 ms from one pod to another and counts the answers.
type flowing struct {
	*cluster
	what    string
	sent    int
	answers int
	gap     time.Duration
	ask     chan chan flowing
}

// flow starts a stream over IPv4 that lasts as long as the test.
func (k *cluster) flow(from, to string) *flowing {
	k.Helper()
	s := &flowing{cluster: k, what: from + " to " + to, ask: make(chan chan flowing)}
	addr := hostPort(k.addrs(to)[0], probePort)
	pid := k.process(from)
	conn := make(chan net.Conn, 1)
	err := within(filepath.Join("../../proc", pid, "ns/net"), func() error {
		c, err := net.Dial("udp", addr)
		conn <- c
		return err
	})
	if err != nil {
		k.Fatal(err)
	}
	c := <-conn
	k.Cleanup(func() { c.Close() })
	go s.run(c)
	return s
}

func (s *flowing) run(c net.Conn) {
	answers := make(chan time.Time, 1000)
	go func() {
		defer close(answers)
		for buf := make([]byte, 100); ; {
			_, err := c.Read(buf)
			if err != nil && strings.Contains(err.Error(), "closed") {
				return
			}
			if err == nil {
				answers <- time.Now()
			}
		}
	}()
	tick, last, now := time.NewTicker(10*time.Millisecond), time.Now(), flowing{}
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.Write([]byte("who"))
			now.sent++
		case at, ok := <-answers:
			if !ok {
				return
			}
			now.answers++
			now.gap, last = max(now.gap, at.Sub(last)), at
		case reply := <-s.ask:
			reply <- now
			now = flowing{}
		}
	}
}

// since returns the numbers of datagrams since the last call.
func (s *flowing) since() flowing {
	reply := make(chan flowing)
	s.ask <- reply
	return <-reply
}

// quiet fails if datagrams were lost. A few may still be on their way.
func (s *flowing) quiet(when string) {
	s.Helper()
	got := s.since()
	s.Logf("%s, %s: %d sent, %d answered, longest gap %v", s.what, when, got.sent, got.answers, got.gap)
	if got.sent-got.answers > 3 {
		s.Errorf("%s: %d datagrams were lost", when, got.sent-got.answers)
	}
}

// lost fails if a tenth of the datagrams was lost. A step on a node may lose the datagrams of some
// seconds, and the steps are minutes apart.
func (s *flowing) lost(when string) {
	s.Helper()
	got := s.since()
	s.Logf("%s, %s: %d sent, %d answered, longest gap %v", s.what, when, got.sent, got.answers, got.gap)
	if got.answers*10 < got.sent*9 || got.answers == 0 {
		s.Errorf("%s: %d of %d datagrams were answered", when, got.answers, got.sent)
	}
}

// process is the process id of a pod's program.
func (k *cluster) process(pod string) string {
	k.Helper()
	return k.processIn("default", pod)
}

// processIn is that of a pod in a namespace.
func (k *cluster) processIn(namespace, pod string) string {
	k.Helper()
	id := k.kubectl("get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	node := k.kubectl("get", "pod", "-n", namespace, pod, "-o", "jsonpath={.spec.nodeName}")
	for line := range strings.Lines(k.node(node, "ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "ls")) {
		if f := strings.Fields(line); len(f) > 1 && "containerd://"+f[0] == id {
			return f[1]
		}
	}
	k.Fatalf("%s has no process", pod)
	return ""
}
