// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Kills chooses the moments at which processes that do the same work are killed. The moments
// cover the whole time of the work. Kills measures that time, because on a busy machine some
// processes take many times longer than others.
type Kills struct {
	t           testing.TB
	what        string
	rnd         *rand.Rand
	usual       time.Duration // how long recent processes took
	tried, died int
}

// NewKills serves processes that do what, for example "ADD". At the end it logs the seed of the
// moments, each of which is a share of the usual time. It also logs how many processes were
// killed.
func NewKills(t testing.TB, what string) *Kills {
	seed := uint64(time.Now().UnixNano())
	k := seededKills(t, what, seed)
	t.Cleanup(func() {
		t.Logf("%d of %d processes died in %s, which takes %v lately; seed %d", k.died, k.tried, what, k.usual, seed)
	})
	return k
}

func seededKills(t testing.TB, what string, seed uint64) *Kills {
	return &Kills{t: t, what: what, rnd: rand.New(rand.NewPCG(seed, 1))}
}

// Try lets run start a process and kill it after some time. If the kill ended the process, died
// is true. The first process runs to its end.
func (k *Kills) Try(run func(after time.Duration) (died bool)) (died bool) {
	k.t.Helper()
	after := k.after()
	start := time.Now()
	died = run(after)
	k.saw(after, time.Since(start), died)
	return died
}

func (k *Kills) after() time.Duration {
	if k.usual == 0 {
		return 5 * time.Minute
	}
	return time.Duration(k.rnd.Float64() * float64(k.usual) * 5 / 4)
}

// saw adjusts the usual time. after is when the process was to be killed, and ran is how long it
// ran until it died or was done.
func (k *Kills) saw(after, ran time.Duration, died bool) {
	k.t.Helper()
	first := k.usual == 0
	switch {
	case first && died:
		k.t.Fatalf("%s was not done after %v", k.what, after)
	case first:
		k.usual = ran
		return
	case died:
		k.died++
		if after > k.usual { // it takes longer than that
			k.usual += k.usual / 4
		}
	default:
		k.usual = (k.usual + ran) / 2
	}
	k.tried++
}

// More reports whether to go on. It does so until tries processes were started and a third of
// them were killed. If ten times as many processes do not reach that, the test ends.
func (k *Kills) More(tries int) bool {
	k.t.Helper()
	if k.tried < tries {
		return true
	}
	if k.died >= tries/3 {
		return false
	}
	if k.tried >= 10*tries {
		k.t.Fatalf("only %d of %d processes died before they were done with %s, which takes %v lately: the test proves little", k.died, k.tried, k.what, k.usual)
	}
	return true
}

// Quickest does something three times and returns the shortest time. Use it to test that nothing
// waits. A wait that always occurs is in each of the three times; a busy or emulated machine delays
// only some of them.
func Quickest(do func(n int)) time.Duration {
	var best time.Duration
	for n := range 3 {
		start := time.Now()
		do(n)
		if took := time.Since(start); n == 0 || took < best {
			best = took
		}
	}
	return best
}
