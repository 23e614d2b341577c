// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos runs agents that share a store through random schedules, and looks
// after each step whether their laws hold:
//
//	chaos.Run(t, 100, func(s *chaos.Schedule) chaos.World { ... })
//
// A schedule is drawn from a seed, and nothing in it is left to chance but that:
// one goroutine takes one step after the other, in a bubble of synctest whose clock
// stands still but in Schedule.Pass, over a store in memory (Store) that can be slow,
// away, emptied, restored from a backup and behind, each table by itself. A schedule
// that fails says its seed and its steps, and PATCHBAY_CHAOS_SEED repeats it.
// PATCHBAY_CHAOS_TRIES says how many schedules there are.
//
// An agent takes part if its work can be called step by step; hosts/chaos_test.go is
// the one that there is.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// World is agents with what they work on.
type World interface {
	// Actions are what may happen now, in an order that the schedule decides.
	Actions() []Action
	// Laws is what must be so after each action.
	Laws() error
	// Calm ends all trouble, lets everybody finish, and says what is not as it should be.
	Calm() error
}

// Action is one thing that may happen. One of twice the weight happens twice as often.
type Action struct {
	Name   string
	Weight int
	Do     func()
}

// Schedule is the source of all chance, and what happened so far.
type Schedule struct {
	*rand.Rand
	trail []string
}

// Say adds to what is told of a schedule that fails.
func (s *Schedule) Say(format string, args ...any) {
	s.trail = append(s.trail, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// Chance is true in so many of a hundred cases.
func (s *Schedule) Chance(percent int) bool { return s.IntN(100) < percent }

// Pass lets time pass.
func (s *Schedule) Pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock of a bubble

// Run runs schedules of up to so many steps, and fails with the first that breaks a
// law. Without a number from the environment there are tries of them.
func Run(t *testing.T, tries, steps int, build func(*Schedule) World) {
	t.Helper()
	first, one := number("PATCHBAY_CHAOS_SEED", 1)
	if n, ok := number("PATCHBAY_CHAOS_TRIES", 0); ok {
		tries = int(n)
	} else if one {
		tries = 1
	}
	for seed := first; seed < first+uint64(tries); seed++ {
		if trail, err := Try(t, seed, steps, build); err != nil {
			t.Fatalf("schedule %d of %d: %v\nPATCHBAY_CHAOS_SEED=%d repeats it:\n%s", seed-first+1, tries, err, seed, strings.Join(trail, "\n"))
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

// number is one from the environment, or what it is without.
func number(name string, without uint64) (n uint64, set bool) {
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil {
		return without, false
	}
	return n, true
}
