// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos takes agents that share a store through random schedules. After each step it
// checks their invariants:
//
//	chaos.Run(t, 100, 1000, 120, func(s *chaos.Schedule, dir string) chaos.World { ... })
//
// A schedule is drawn from a seed, which determines all of it. One goroutine takes one step after
// the other, in a bubble of synctest. The bubble's clock moves only in Schedule.Pass. The store
// is in memory (Store). It can be slow, unreachable, emptied or restored from a backup, and each
// table can be behind the others. A failed schedule prints its seed and its steps, and
// PATCHBAY_SEED repeats it. PATCHBAY_CHAOS_TRIES is the number of schedules.
//
// An agent can be tested if its work can be called step by step, as in daemons/hosts/chaos_test.go and, with
// another source than a Store, daemons/node/chaos_test.go. Kernel has the invariant that all agents keep.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// World is a set of agents, with everything on which they work.
type World interface {
	// Actions returns the possible next actions, from which the schedule draws.
	Actions() []Action
	// Laws checks the invariants, which must hold after each action.
	Laws() error
	// Calm ends all trouble and lets all agents finish. It returns what is still wrong then.
	Calm() error
}

// Action is one possible step. With twice the weight, an action is drawn twice as often.
type Action struct {
	Name   string
	Weight int
	Do     func()
}

// Schedule makes all random choices, and records the steps so far.
type Schedule struct {
	*rand.Rand
	trail []string
}

// Say adds a line to the record of steps. A failed schedule prints this record.
func (s *Schedule) Say(format string, args ...any) {
	s.trail = append(s.trail, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// Chance returns true in percent of a hundred cases.
func (s *Schedule) Chance(percent int) bool { return s.IntN(100) < percent }

// Pass lets time pass.
func (s *Schedule) Pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock of a bubble

// Run runs schedules of up to steps steps. It fails with the first schedule that breaks an
// invariant. It runs few schedules, or all (internal/test/draw), or one if the environment has its seed.
func Run(t *testing.T, few, all, steps int, build func(s *Schedule, dir string) World) {
	t.Helper()
	first, given := draw.Seed(t)
	if given {
		few, all = 1, 1
	}
	dir, err := os.MkdirTemp("/run", "chaos") // a file system in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tries := draw.Number(t, "PATCHBAY_CHAOS_TRIES", few, all)
	for seed := first; seed < first+uint64(tries); seed++ {
		own := filepath.Join(dir, fmt.Sprint(seed))
		trail, err := Try(t, seed, steps, func(s *Schedule) World { return build(s, own) })
		if err != nil {
			t.Fatalf("schedule %d of %d: %v\n%s=%d repeats it:\n%s", seed-first+1, tries, err, draw.SeedEnv, seed, strings.Join(trail, "\n"))
		}
		if err := os.RemoveAll(own); err != nil {
			t.Fatal(err)
		}
	}
}

// Try runs the schedule of a seed, and returns its steps.
func Try(t *testing.T, seed uint64, steps int, build func(*Schedule) World) (trail []string, err error) {
	t.Helper()
	s := &Schedule{Rand: rand.New(rand.NewPCG(seed, 0))}
	synctest.Test(t, func(*testing.T) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		err = s.run(build(s), 1+s.IntN(steps))
	})
	return s.trail, err
}

func (s *Schedule) run(w World, steps int) error {
	for range steps {
		a := s.pick(w.Actions())
		s.Say("%s", a.Name)
		a.Do()
		if err := w.Laws(); err != nil {
			return fmt.Errorf("after %q: %w", a.Name, err)
		}
	}
	if err := w.Calm(); err != nil {
		return fmt.Errorf("after calm: %w", err)
	}
	return nil
}

func (s *Schedule) pick(all []Action) Action {
	sum := 0
	for _, a := range all {
		sum += a.Weight
	}
	at := s.IntN(sum)
	for _, a := range all {
		if at -= a.Weight; at < 0 {
			return a
		}
	}
	return all[len(all)-1]
}
