// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package fabric is what the agent of a machine does with the mesh between machines, whatever tells it of the
// others: `patchbayd hosts` reads a store, `patchbayd node` the Kubernetes API.
package fabric

import (
	"context"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// ReconcileEvery is the interval at which an agent compares everything, even if no change is reported.
const ReconcileEvery = time.Minute

// Mesh carries packets between the machines. *mesh.Mesh implements it.
type Mesh interface {
	Apply(ctx context.Context, self mesh.Self, peers []mesh.Peer) error
	UplinkMTU(underlay []netip.Addr) (int, error)
	// Watch calls changed when Apply must run again, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// Probe calls changed when the MTU of a path to another machine changes, until ctx ends.
	Probe(ctx context.Context, changed func()) error
}

// Carrier applies a mesh when it must. One goroutine uses it.
type Carrier struct {
	Mesh    Mesh
	Applied func(took time.Duration, err error) // if it is not nil, called after each Apply

	self  mesh.Self
	peers []mesh.Peer
	done  bool
}

// Carry calls Apply, unless its last call had the same input and succeeded. If all is set, it always does,
// because the kernel may have changed.
func (c *Carrier) Carry(ctx context.Context, self mesh.Self, peers []mesh.Peer, all bool) error {
	if !all && c.done && reflect.DeepEqual(self, c.self) && reflect.DeepEqual(peers, c.peers) {
		return nil
	}
	began := time.Now()
	err := c.Mesh.Apply(ctx, self, peers)
	if c.Applied != nil {
		c.Applied(time.Since(began), err)
	}
	c.self, c.peers, c.done = self, peers, err == nil
	return err
}

// Done reports whether the last Apply succeeded.
func (c *Carrier) Done() bool { return c.done }

// Follow calls changed when Apply must run again, until ctx ends. It reports why the kernel or the paths cannot
// be watched, and nil when they can again.
func Follow(ctx context.Context, m Mesh, changed func(), unwatched, unprobed func(error)) {
	var wg sync.WaitGroup
	wg.Go(func() { resident.Keep(ctx, unwatched, func() error { return m.Watch(ctx, changed) }) })
	wg.Go(func() { resident.Keep(ctx, unprobed, func() error { return m.Probe(ctx, changed) }) })
	wg.Wait()
}

// Loop keeps a machine in the desired state. If all is set, Apply compares the kernel, too. Apply reports
// whether it is done; if not, Loop calls it again after a pause of about Retry.
type Loop struct {
	Apply  func(ctx context.Context, all bool) (done bool)
	Retry  time.Duration
	Kernel <-chan struct{} // the kernel's state changed
	World  <-chan struct{} // what is known of the machines changed
}

// Run works until ctx ends. Between changes it pauses in proportion to what Apply takes.
func (l *Loop) Run(ctx context.Context) {
	tick := time.NewTicker(ReconcileEvery)
	defer tick.Stop()
	for all := true; ; {
		began := time.Now()
		done := l.Apply(ctx, all)
		ended := time.Now()
		took := ended.Sub(began)
		var retry <-chan time.Time
		if !done {
			retry = time.After(resident.Jitter(l.Retry))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			all = true
		case <-retry:
			all = true
		case <-l.Kernel:
			all = true
			clock.Sleep(ctx, resident.Pause(took, ended))
		case <-l.World:
			all = false
			clock.Sleep(ctx, resident.Pause(took, ended))
		}
	}
}
