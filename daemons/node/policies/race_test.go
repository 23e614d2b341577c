// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// TestAtTheSameTime has a watch for each kind, a reader, and Follow, all at the same time. The last
// state that Follow gives is that of the last objects.
func TestAtTheSameTime(t *testing.T) {
	g := policytest.NewGenerator(7, policytest.Small)
	var rounds [][kinds]map[key][]byte
	for range 30 {
		rounds = append(rounds, objectsOf(t, g.Cluster))
		g.Change()
	}
	c := New("node1")
	ctx, cancel := context.WithCancel(t.Context())
	programs, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		c.Follow(ctx, burst.Wait{Shortest: time.Microsecond, Longest: time.Millisecond}, func() {}, func(s *policy.State) error {
			latest(programs, policy.Compile(s).String())
			return nil
		})
	}()
	var watches sync.WaitGroup
	for k := range kinds {
		watches.Go(func() { watch(t, c, k, rounds) })
	}
	watches.Go(func() {
		for range 1000 {
			c.Losses()
			c.Problems()
		}
	})
	watches.Wait()
	want := policy.Compile(built(t, rounds[len(rounds)-1], "node1")).String()
	for got := ""; got != want; {
		select {
		case got = <-programs:
		case <-time.After(time.Minute):
			t.Fatalf("the last program is not\n%s", want)
		}
	}
	cancel()
	<-ended
}

// latest replaces the value in a channel.
func latest(to chan string, value string) {
	select {
	case <-to:
	default:
	}
	to <- value
}

// watch gives a kind's objects of each round to a Cluster, as a list or as events.
func watch(t *testing.T, c *Cluster, k Kind, rounds [][kinds]map[key][]byte) {
	var before [kinds]map[key][]byte
	r := rand.New(rand.NewPCG(uint64(k), 0))
	for i, after := range rounds {
		var one [kinds]map[key][]byte
		one[k] = after[k]
		if i%10 == 0 {
			deliverList(t, c, k, after[k])
		} else {
			for _, e := range between(before, one, r) {
				e.send(t, c)
			}
		}
		c.Report(k, fmt.Errorf("the watch ends in round %d", i))
		c.Report(k, nil)
		before = one
	}
}

func deliverList(t *testing.T, c *Cluster, k Kind, objects map[key][]byte) {
	var list [][]byte
	for _, name := range sorted(objects) {
		list = append(list, objects[name])
	}
	if err := c.Replace(k, all(list...)); err != nil {
		t.Error(err)
	}
}
