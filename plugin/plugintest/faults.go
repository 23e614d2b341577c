// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/fault"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// errFault is the error of an injected fault.
var errFault = errors.New("injected fault")

// faults makes ADD fail before each of its changes in turn, and checks each time that nothing
// is left. The last step is "commit" of the SDK (plugin/serve.go): it follows the last change that
// the plugin makes itself, so the undo of that change runs too.
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
		before := sysctls(t, w.Attachment())
		_, err := w.Call(t.Context(), spec.Add)
		if !errors.Is(err, errFault) {
			t.Errorf("step %d %q: ADD returned %v, want the injected fault", i+1, name, err)
		}
		if left := w.Left(); len(left) > 0 {
			t.Errorf("step %d %q: failed ADD left behind:\n%s", i+1, name, left)
		}
		if left := sysctls(t, w.Attachment()).Changed(before); len(left) > 0 && !c.UndoneByDEL {
			t.Errorf("step %d %q: failed ADD left behind:\n%s", i+1, name, left)
		}
		w.Close()
	}
}

// sysctls reads the settings of an attachment's links.
func sysctls(t *testing.T, a *conformance.Container) (s leak.Attributes) {
	t.Helper()
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	if err := ns.Do(func() error { s = leak.Sysctls(); return nil }); err != nil {
		t.Fatal(err)
	}
	return s
}

// steps runs one ADD and returns the names of its steps.
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

// removalFaults lets system calls of DEL and GC fail, one in each try. It checks that a repeated DEL or GC
// leaves nothing, and that a second attachment has lost nothing.
func (c *Case) removalFaults(t *testing.T, p *plugin.Plugin, inProcess invoke.Invoker) {
	r := &removals{t: t, next: inProcess, dir: Install(t, append([]*plugin.Plugin{p}, c.Delegates...)...)}
	s := c.suite(r, []string{r.dir})
	for verb, words := range map[spec.Verb][]string{spec.Del: nil, spec.GC: {"valid=second"}} {
		all := r.once(s, verb, words, 0)
		seed, _ := draw.Seed(t)
		t.Logf("%s makes %d system calls that can fail; %s=%d draws the same again", verb, all, draw.SeedEnv, seed)
		for _, at := range rand.New(rand.NewPCG(seed, 0)).Perm(all)[:min(all, draw.Number(t, "PATCHBAY_REMOVAL_FAULTS", 5, 12))] {
			r.once(s, verb, words, at+1)
		}
	}
}

// removals calls a plugin in process, but as a program with a fault if injector is set.
type removals struct {
	t        *testing.T
	next     invoke.Invoker
	dir      string
	injector *fault.Injector
}

// Invoke calls the plugin.
func (r *removals) Invoke(ctx context.Context, name string, call *spec.Call) ([]byte, error) {
	if r.injector == nil {
		return r.next.Invoke(ctx, name, call)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, name))
	cmd.Env = append(os.Environ(), call.Environ()...)
	cmd.Stdin = bytes.NewReader(call.Config)
	return r.injector.Run(cmd)
}

// once attaches two containers and removes the first, with a fault in one system call. It returns how many
// system calls could have failed.
func (r *removals) once(s conformance.Suite, verb spec.Verb, words []string, at int) (calls int) {
	r.t.Helper()
	w := s.World(r.t)
	defer w.Close()
	r.must(w.Call(r.t.Context(), spec.Add))
	r.must(w.Call(r.t.Context(), spec.Add, "at=second"))
	if verb == spec.GC { // some plugins leave objects that end with the namespace
		r.must(nil, w.DeleteNetNS())
	}
	injector := &fault.Injector{At: at}
	r.injector = injector
	_, err := w.Call(r.t.Context(), verb, words...)
	r.injector = nil
	if err != nil && !injector.Failed() {
		r.t.Errorf("%s: %v", verb, err)
	}
	again := verb
	if err == nil { // the runtime deletes the namespace, and later sends a GC
		again, words = spec.GC, []string{"valid=second"}
		r.must(nil, w.DeleteNetNS())
	}
	if _, err := w.Call(r.t.Context(), again, words...); err != nil {
		r.t.Errorf("%s after %s with %v: %v", again, verb, injector, err)
	}
	if _, err := w.Call(r.t.Context(), spec.Check, "at=second"); err != nil {
		r.t.Errorf("the other attachment after %s with %v: %v", verb, injector, err)
	}
	r.must(w.Call(r.t.Context(), spec.Del, "at=second"))
	if left := w.Left(); left != "" {
		r.t.Errorf("%s with %v left:\n%s", verb, injector, left)
	}
	return injector.Calls
}

func (r *removals) must(_ []byte, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
