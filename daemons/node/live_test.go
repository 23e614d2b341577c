// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest/wire"
	"github.com/patchbay-net/patchbay/netns"
)

// liveNode is a node whose agent also watches the kernel.
type liveNode struct {
	*wireNode
	applies atomic.Int64
	longest atomic.Int64 // Apply, as a time.Duration
}

// newLiveNodes makes nodes 1 and 2 on one link, without agents.
func newLiveNodes(t *testing.T) (a, b *liveNode) {
	t.Helper()
	api := newAPIServer(t)
	a, b = &liveNode{wireNode: newWireNode(t, api, 1)}, &liveNode{wireNode: newWireNode(t, api, 2)}
	for _, n := range []*liveNode{a, b} {
		n.again = retryEvery
		must(t, n.Conn.SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	wire.Cable(a.Host, b.Host, wire.Uplink, "192.0.2.0/24", "2001:db8::/64")
	api.set(kubeNode(1))
	api.set(kubeNode(2))
	return a, b
}

func (n *liveNode) Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error {
	began := time.Now()
	defer func() {
		n.longest.Store(max(n.longest.Load(), int64(time.Since(began))))
		n.applies.Add(1)
	}()
	return n.wireNode.Apply(ctx, self, peers)
}

// Watch works on a thread of its own, since Apply needs that of the node.
func (n *liveNode) Watch(ctx context.Context, changed func()) error {
	ns, err := netns.Open(fmt.Sprintf("/proc/self/fd/%d", n.Conn.NS.Fd()))
	if err != nil {
		return err
	}
	conn, err := nl.In(ns, "/proc")
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Do(func() error { return n.mesh.Watch(ctx, changed) })
}

// runs starts the node's agent with a transport.
func (n *liveNode) runs(transport mesh.Transport) {
	n.start(func(o *Options) {
		o.Node, o.Paths, o.Fabric, o.Transport = fmt.Sprint("n", n.Number), n.paths, n, transport
		if transport == mesh.WireGuard {
			o.Key, o.WirePort = n.keys.Public, wirePort
		}
	})
}

// probe sends a datagram from one pod to another one every millisecond, and counts the answers.
type probe struct {
	t    *testing.T
	stop func()

	mu      sync.Mutex
	sent    int
	count   int
	next    uint64    // the number after that of the last answer
	row     int       // answers since one was missing
	last    time.Time // the last answer
	longest time.Duration
}

// probeEvery is the time between two datagrams.
const probeEvery = time.Millisecond

func newProbe(from, to *liveNode, family int) *probe {
	from.Helper()
	p := &probe{t: from.T, last: time.Now()}
	open := func(n *liveNode) (c net.PacketConn) {
		must(n.T, n.Conn.Do(func() (err error) {
			c, err = net.ListenPacket("udp", net.JoinHostPort(n.pod(family).String(), "0"))
			return err
		}))
		return c
	}
	near, far := open(from), open(to)
	go func() {
		buf := make([]byte, 8)
		for {
			n, from, err := far.ReadFrom(buf)
			if err != nil {
				return
			}
			far.WriteTo(buf[:n], from) //nolint:errcheck // the probe counts what does not come back
		}
	}()
	go func() {
		buf := make([]byte, 8)
		for {
			if _, _, err := near.ReadFrom(buf); err != nil {
				return
			}
			p.answered(binary.BigEndian.Uint64(buf))
		}
	}()
	ended := make(chan struct{})
	go p.send(near, far.LocalAddr(), ended)
	p.stop = sync.OnceFunc(func() { close(ended); near.Close(); far.Close() }) //nolint:errcheck // a test
	p.t.Cleanup(p.stop)
	return p
}

func (p *probe) send(near net.PacketConn, to net.Addr, ended <-chan struct{}) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for n := uint64(0); ; n++ {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		near.WriteTo(binary.BigEndian.AppendUint64(nil, n), to) //nolint:errcheck // without a route it is lost
		p.mu.Lock()
		p.sent++
		p.mu.Unlock()
	}
}

func (p *probe) answered(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number != p.next {
		p.row = 0
	}
	p.next, p.row = number+1, p.row+1
	now := time.Now()
	p.longest = max(p.longest, now.Sub(p.last))
	p.last, p.count = now, p.count+1
}

// look prints what happened since the last look, and returns the longest time without an answer.
func (p *probe) look(when string) (longest time.Duration) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	longest = max(p.longest, time.Since(p.last))
	p.t.Logf("%s: %d sent, %d lost, longest time without an answer %v", when, p.sent, p.sent-p.count, longest.Round(100*time.Microsecond))
	p.sent, p.count, p.longest, p.last = 0, 0, 0, time.Now()
	return longest
}

// flows waits until many answers have come in a row. It does not judge their time: on an emulated
// machine each one is late, and none is lost.
func (p *probe) flows(what string) {
	p.t.Helper()
	p.mu.Lock()
	p.row = 0
	p.mu.Unlock()
	for end, row := time.Now().Add(patience), 0; row < 50; time.Sleep(probeEvery) {
		p.mu.Lock()
		row = p.row
		p.mu.Unlock()
		if time.Now().After(end) {
			p.t.Fatalf("%s: no 50 answers in a row within %v", what, patience)
		}
	}
}
