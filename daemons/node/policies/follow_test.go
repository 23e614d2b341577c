// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/resident"
)

const ms = time.Millisecond

var wait = burst.Wait{Shortest: 20 * ms, Longest: 100 * ms, Rest: 2}

// followed is a Cluster whose states are counted.
type followed struct {
	*Cluster

	mu    sync.Mutex
	began time.Time
	at    []time.Duration // when each program began
	pods  []int           // of each state
	takes time.Duration
	err   error
}

// program is what Follow calls.
func (f *followed) program(s *policy.State) error {
	f.mu.Lock()
	f.at, f.pods = append(f.at, time.Since(f.began)), append(f.pods, len(s.Pods))
	takes, err := f.takes, f.err
	f.mu.Unlock() // a bubble's time stands still while a goroutine waits for a lock
	time.Sleep(takes)
	return err
}

// set says how the next programs end.
func (f *followed) set(takes time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes, f.err = takes, err
}

// programs returns when the programs began, and the pods of each.
func (f *followed) programs() (at []time.Duration, pods []int) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.at), slices.Clone(f.pods)
}

// follow runs a test in a bubble of the package synctest, after the Cluster was listed and its first program made.
func follow(t *testing.T, c *Cluster, test func(f *followed)) { followWith(t, c, wait, test) }

func followWith(t *testing.T, c *Cluster, w burst.Wait, test func(f *followed)) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &followed{Cluster: c, began: time.Now()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Follow(ctx, w, func() {}, f.program)
	}()
	test(f)
	cancel()
	<-ended
}

// ready lets the first program pass.
func (f *followed) ready() {
	time.Sleep(time.Minute)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.began, f.at, f.pods = time.Now(), nil, nil
}

func (f *followed) add(t *testing.T, i int) {
	set(t, f.Cluster, Pods, pod(fmt.Sprint("p", i), "Running", fmt.Sprintf("10.1.%d.%d", i/250, i%250)))
}

// Nothing is compiled before the last kind has been listed.
func TestNothingBeforeTheLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, New("n1"), func(f *followed) {
			for _, k := range []Kind{Pods, Nodes, ClusterNetworkPolicies, NetworkPolicies} {
				f.add(t, int(k))
				replace(t, f.Cluster, k, []byte(good[k]))
				time.Sleep(time.Minute)
			}
			f.Report(Namespaces, errors.New("connection refused"))
			if at, _ := f.programs(); len(at) > 0 {
				t.Fatalf("%d programs of a part of the objects", len(at))
			}
			replace(t, f.Cluster, Namespaces)
			time.Sleep(time.Minute)
			if at, _ := f.programs(); len(at) != 1 {
				t.Errorf("%d programs after the lists, want 1", len(at))
			}
		})
	})
}

// A thousand changes, at once or one after the other, are one program.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, pause := range []time.Duration{0, 90 * time.Microsecond} {
			follow(t, listed(t, "n1"), func(f *followed) {
				f.ready()
				for i := range 1000 {
					f.add(t, i)
					time.Sleep(pause)
				}
				time.Sleep(time.Minute)
				if at, pods := f.programs(); !slices.Equal(pods, []int{1000}) || at[0] > 999*pause+wait.Shortest {
					t.Errorf("pause %s: programs of %d pods at %s, want one of 1000", pause, pods, at)
				}
			})
		}
	})
}

// Changes that never end do not delay a program by more than the longest wait.
func TestConstantChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, listed(t, "n1"), func(f *followed) {
			f.ready()
			for i := range 2000 {
				f.add(t, i)
				time.Sleep(5 * ms)
			}
			programs, _ := f.programs()
			last := time.Duration(0)
			for _, at := range programs {
				if at-last > wait.Longest+5*ms {
					t.Errorf("no program from %s to %s", last, at)
				}
				last = at
			}
			if n := len(programs); n < 90 || n > 100 {
				t.Errorf("%d programs in 10 s, want 95 to 100", n)
			}
		})
	})
}

// A program that takes long is followed by a rest, but not the first change after it.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, listed(t, "n1"), func(f *followed) {
			f.ready()
			f.set(200*ms, nil)
			for i := range 400 {
				f.add(t, i)
				time.Sleep(5 * ms)
			}
			at, _ := f.programs()
			if want := []time.Duration{100 * ms, 700 * ms, 1300 * ms, 1900 * ms}; !slices.Equal(at, want) {
				t.Errorf("programs at %s, want %s", at, want)
			}
			f.ready()
			f.add(t, 400)
			time.Sleep(time.Second)
			if at, _ := f.programs(); !slices.Equal(at, []time.Duration{wait.Shortest}) {
				t.Errorf("after a pause: programs at %s, want %s", at, wait.Shortest)
			}
		})
	})
}

// A change that policies cannot see, or a repeated event, does not count as a change.
func TestNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, listed(t, "n1"), func(f *followed) {
			for k, o := range good {
				set(t, f.Cluster, k, o)
			}
			f.ready()
			for k, o := range good {
				set(t, f.Cluster, k, o, `{"status":{"conditions":[{"type":"Ready"}]},`+o[1:len(o)-1]+`,"kind":"x"}`)
				replace(t, f.Cluster, k, []byte(o))
			}
			set(t, f.Cluster, Pods, pod("b", "Succeeded", "10.1.1.1"))
			f.Delete(Pods, "x", "c")
			f.Delete(Nodes, "", "n2")
			f.Report(Pods, errors.New("connection refused"))
			f.Report(Pods, nil)
			time.Sleep(time.Minute)
			if at, _ := f.programs(); len(at) > 0 {
				t.Errorf("%d programs, want none", len(at))
			}
			f.Delete(Nodes, "", "n1")
			time.Sleep(time.Minute)
			if at, _ := f.programs(); len(at) != 1 {
				t.Errorf("%d programs after a change, want 1", len(at))
			}
		})
	})
}

// A single change that comes during the rest waits for the end of the rest.
func TestChangeDuringRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, listed(t, "n1"), func(f *followed) {
			f.ready()
			f.set(200*ms, nil)
			f.add(t, 0)
			time.Sleep(300 * ms)
			f.add(t, 1)
			time.Sleep(time.Minute)
			at, _ := f.programs()
			if want := []time.Duration{20 * ms, 620 * ms}; !slices.Equal(at, want) {
				t.Errorf("programs at %s, want %s", at, want)
			}
		})
	})
}

// With a credit, the first changes do not wait for the rest after the program before.
func TestCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wait
		w.Credit = 800 * ms
		followWith(t, listed(t, "n1"), w, func(f *followed) {
			f.ready()
			f.set(200*ms, nil)
			for i := range 4 {
				f.add(t, i)
				time.Sleep(300 * ms)
			}
			at, _ := f.programs()
			if want := []time.Duration{20 * ms, 320 * ms, 620 * ms, 1020 * ms}; !slices.Equal(at, want) {
				t.Errorf("programs at %s, want %s", at, want)
			}
		})
	})
}

// Each field of a pod that policies can see is a change, and other fields are none.
func TestFieldsOfAPod(t *testing.T) {
	c := listed(t, "n1")
	const before = `{"metadata":{"namespace":"x","name":"a","uid":"u","creationTimestamp":"2026-11-23T08:00:00Z","labels":{"app":"a"}},"spec":{"nodeName":"n1","containers":[{"ports":[{"name":"http","containerPort":80}]}]},"status":{"phase":"Pending","podIP":"10.1.1.1"}}`
	for _, field := range []struct {
		was, is string
		counts  bool
	}{
		{`"u"`, `"v"`, true}, {`08:00`, `09:00`, true}, {`"app":"a"`, `"app":"b"`, true}, {`n1`, `n2`, true}, {`:80}`, `:81}`, true}, {`10.1.1.1`, `10.1.1.2`, true},
		{`"labels"`, `"deletionTimestamp":"2026-11-23T08:00:00Z","labels"`, true}, {`Pending`, `Succeeded`, true},
		{`Pending`, `Running`, false}, {`"labels"`, `"annotations":{"a":"b"},"labels"`, false}, {`"containerPort"`, `"hostPort":7,"containerPort"`, false},
	} {
		set(t, c, Pods, before)
		select {
		case <-c.changed:
		default:
		}
		set(t, c, Pods, strings.Replace(before, field.was, field.is, 1))
		if counts := len(c.changed) > 0; counts != field.counts {
			t.Errorf("%s instead of %s is a change: %v, want %v", field.is, field.was, counts, field.counts)
		}
	}
}

// A program that cannot be loaded is tried again: after a pause, or with the next change.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow(t, listed(t, "n1"), func(f *followed) {
			f.ready()
			f.set(0, errors.New("no buffer space"))
			f.add(t, 0)
			time.Sleep(10 * time.Minute)
			tries, _ := f.programs()
			for i := 1; i < len(tries); i++ {
				if d := tries[i] - tries[i-1]; d > resident.RetryMost*3/2 || d < resident.RetryFirst/2 {
					t.Errorf("try %d comes after %s", i, d)
				}
			}
			if len(tries) < 25 || len(tries) > 100 {
				t.Errorf("%d tries in ten minutes", len(tries))
			}
			f.set(0, nil)
			f.add(t, 1)
			time.Sleep(wait.Shortest)
			f.want(t, len(tries)+1)
			time.Sleep(time.Hour) // the try that worked is the last one
			f.want(t, len(tries)+1)
		})
	})
}

func (f *followed) want(t *testing.T, programs int) {
	t.Helper()
	if at, _ := f.programs(); len(at) != programs {
		t.Errorf("%d programs, want %d", len(at), programs)
	}
}
