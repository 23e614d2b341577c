// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// counted is a mesh that counts calls and fails when it is told to.
type counted struct {
	Mesh
	calls int
	err   error
}

func (c *counted) Apply(context.Context, mesh.Self, []mesh.Peer) error {
	c.calls++
	return c.err
}

func TestCarry(t *testing.T) {
	m := &counted{}
	c := Carrier{Mesh: m}
	self := mesh.Self{Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	peers := []mesh.Peer{{ID: "b"}}
	failed := errors.New("failed")
	for i, s := range []struct {
		peers []mesh.Peer
		all   bool
		err   error
		calls int
	}{
		{peers, false, failed, 1}, // the first
		{peers, false, nil, 2},    // again, because it failed
		{peers, false, nil, 2},
		{peers, true, nil, 3},
		{nil, false, nil, 4},
		{peers, false, nil, 5},
	} {
		m.err = s.err
		if err := c.Carry(t.Context(), self, s.peers, s.all); !errors.Is(err, s.err) || m.calls != s.calls || c.Done() != (s.err == nil) {
			t.Errorf("step %d: %v, %d calls, done %v", i, err, m.calls, c.Done())
		}
	}
}

// After a change of the kernel, Apply compares the kernel; after a change of the other machines, it does not.
// Work that is not done is tried again.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, world := make(chan struct{}, 1), make(chan struct{}, 1)
		var mu sync.Mutex
		var got []string
		calls := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(got)
		}
		began := time.Now()
		l := Loop{Retry: 3 * time.Second, Kernel: kernel, World: world, Apply: func(_ context.Context, all bool) bool {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(all))
			return len(got) != 3
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Run(ctx)
		synctest.Wait()
		for _, c := range []chan struct{}{world, kernel} {
			c <- struct{}{}
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second) // the third call was not done
		if got, want := calls(), []string{"true", "false", "true", "true"}; !slices.Equal(got, want) {
			t.Errorf("%v after %v, want %v", got, time.Since(began), want)
		}
		time.Sleep(ReconcileEvery)
		if got := calls(); len(got) != 5 || got[4] != "true" {
			t.Errorf("%v a minute later", got)
		}
	})
}
