// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// errFault is the error of an injected fault.
var errFault = errors.New("injected fault")

// faults fails ADD before each of its changes in turn and checks that nothing is left.
func (c *Case) faults(t *testing.T, p *plugin.Plugin) {
	steps := c.steps(t, p)
	if len(steps) == 0 {
		t.Fatal("ADD names no step (Request.Step): nothing proves that its failure leaves nothing behind")
	}
	for i, name := range steps {
		n := 0
		inv := c.builtin(t, p, func(string) error {
			if n++; n == i+1 {
				return errFault
			}
			return nil
		})
		w := c.suite(inv, nil).World(t)
		_, err := w.Call(t.Context(), spec.Add)
		if !errors.Is(err, errFault) {
			t.Errorf("step %d %q: ADD returned %v, want the injected fault", i+1, name, err)
		}
		if left := w.Left(); len(left) > 0 {
			t.Errorf("step %d %q: failed ADD left behind:\n%s", i+1, name, left)
		}
		w.Close()
	}
}

// steps runs one ADD and lists the steps it names.
func (c *Case) steps(t *testing.T, p *plugin.Plugin) (names []string) {
	recording := false
	inv := c.builtin(t, p, func(step string) error {
		if recording {
			names = append(names, step)
		}
		return nil
	})
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	recording = true
	if _, err := w.Call(t.Context(), spec.Add); err != nil {
		t.Fatal(err)
	}
	recording = false
	if _, err := w.Call(t.Context(), spec.Del); err != nil {
		t.Fatal(err)
	}
	return names
}

// cancelled: a call whose context has ended does nothing or finishes, and never leaves half
// of its work.
func (c *Case) cancelled(t *testing.T, inv invoke.Invoker) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	if _, err := w.Call(ctx, spec.Add); !errors.Is(err, context.Canceled) {
		t.Errorf("ADD in a cancelled context returned %v", err)
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("ADD in a cancelled context left behind:\n%s", left)
	}
	if _, err := w.Call(t.Context(), spec.Add); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Call(ctx, spec.Del) // may do nothing, may do all of it
	if _, err := w.Call(t.Context(), spec.Del); err != nil {
		t.Errorf("DEL after a cancelled one: %v", err)
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("DEL after a cancelled one left behind:\n%s", left)
	}
}

// leaks counts goroutines and descriptors around a life in process.
func (c *Case) leaks(t *testing.T, inv invoke.Invoker) {
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	c.life(t, w) // descriptors that are opened once and kept, such as the poller's, are open now
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		c.life(t, w)
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= goroutines && descriptors(t) <= fds {
			return
		}
	}
	t.Errorf("goroutines %d -> %d, descriptors %d -> %d", goroutines, runtime.NumGoroutine(), fds, descriptors(t))
}

func (c *Case) life(t *testing.T, w *conformance.World) {
	t.Helper()
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Status, spec.Del, spec.GC} {
		if _, err := w.Call(t.Context(), verb); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
