// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// podState is what the runtime knows about a pod.
type podState int

const (
	absent    podState = iota
	attached           // its ADD succeeded
	unsure             // a plugin was killed; the runtime must repeat DEL
	forgotten          // the runtime forgot the pod, so GC must remove it
)

// churned is one pod. Only one goroutine at a time touches it.
type churned struct {
	c      *churning
	list   *chain.List
	number int
	life   int // counts the pod's containers
	state  podState
	hasNS  bool
	addrs  []netip.Addr
	rnd    *rand.Rand
}

func (p *churned) id() string { return fmt.Sprintf("churn%d-%d", p.number, p.life) }

func (p *churned) attachment() chain.Attachment {
	port := 20000 + p.number
	return chain.Attachment{ContainerID: p.id(), NetNS: p.namespace(), IfName: "eth0", Capabilities: map[string]any{
		"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}, {"hostPort": port, "containerPort": 53, "protocol": "udp"}},
	}}
}

// step does what a runtime would do next with this pod.
func (p *churned) step() {
	switch p.state {
	case absent:
		p.add()
	case attached:
		if p.rnd.IntN(10) == 0 {
			p.forget()
			return
		}
		if p.rnd.IntN(5) == 0 {
			p.endNamespace() // the sandbox ended first
		}
		p.del(true)
	case unsure:
		if p.rnd.IntN(3) == 0 {
			p.forget()
			return
		}
		p.del(true)
	case forgotten: // waits for GC
		time.Sleep(time.Millisecond)
	}
}

// add attaches a new container.
func (p *churned) add() {
	p.life++
	p.endNamespace()
	if err := netns.Create(p.namespace()); err != nil {
		p.c.Error(err)
		return
	}
	p.hasNS = true
	p.c.adds.Add(1)
	result, err := p.c.rt.Add(context.Background(), p.list, p.attachment())
	switch {
	case err == nil:
		p.state = attached
		p.c.claim(p, result.IPs)
	case wasKilled(err):
		p.state = unsure
	default:
		p.c.Errorf("ADD %s on %s: %v", p.id(), p.list.Name, err)
	}
}

// del detaches the pod. If a plugin is killed, a later step repeats the DEL.
func (p *churned) del(mayDie bool) {
	p.c.release(p)
	p.c.dels.Add(1)
	err := p.c.rt.Del(context.Background(), p.list, p.attachment())
	switch {
	case err == nil:
		p.state = absent
		p.endNamespace()
	case mayDie && wasKilled(err):
		p.state = unsure
	default:
		p.c.Errorf("DEL %s of %s: %v", p.id(), p.list.Name, err)
	}
}

// check runs CHECK on a living pod.
func (p *churned) check() {
	if err := p.c.rt.Check(context.Background(), p.list, p.attachment()); err != nil {
		p.c.Errorf("CHECK %s on %s: %v", p.id(), p.list.Name, err)
	}
}

// forget does what a crashing runtime does. The namespace goes with the container, and sometimes
// the cached result too. No DEL follows.
func (p *churned) forget() {
	p.c.release(p)
	p.c.lost.Add(1)
	p.endNamespace()
	p.state = forgotten
	if p.rnd.IntN(2) == 0 {
		return
	}
	cached := filepath.Join(paths.Default().CNI, "results", p.list.Name+"-"+p.id()+"-eth0")
	if err := os.Remove(cached); err != nil && !os.IsNotExist(err) {
		p.c.Error(err)
	}
}

// errKilled is the error of a plugin that was killed.
var errKilled = errors.New("killed by the test")

func wasKilled(err error) bool { return errors.Is(err, errKilled) }

// killer calls plugins by exec, and kills some of them with all their processes. It does so at a
// random moment of the time that a call usually takes.
type killer struct {
	exec   invoke.Exec
	seed   uint64
	odds   atomic.Int64 // in a hundred
	calls  atomic.Uint64
	killed atomic.Int64
	usual  atomic.Int64 // how long recent calls took, in nanoseconds
}

// Invoke implements invoke.Invoker.
func (k *killer) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	rnd := rand.New(rand.NewPCG(k.seed, k.calls.Add(1)))
	if rnd.Int64N(100) >= k.odds.Load() {
		start := time.Now()
		out, err := k.exec.Invoke(ctx, pluginType, call)
		k.usual.Store((7*k.usual.Load() + int64(time.Since(start))) / 8)
		return out, err
	}
	// A call does half of its work in the first milliseconds. The rest of the time it waits for the
	// kernel or a lock.
	short, cancel := context.WithTimeout(ctx, time.Duration(rnd.Int64N(max(1, k.usual.Load()))))
	defer cancel()
	out, err := k.exec.Invoke(short, pluginType, call)
	if err != nil && short.Err() != nil {
		k.killed.Add(1)
		return nil, errKilled
	}
	return out, err
}
