// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// hanging has the plugins "hangs", whose DEL never ends, and "quick".
func hanging() *plugin.Session {
	add := func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
		return &spec.Result{Interfaces: []spec.Interface{{Name: r.IfName, Sandbox: r.NetNS}}}, nil
	}
	quick := func(context.Context, *plugin.Request) error { return nil }
	hangs := func(ctx context.Context, _ *plugin.Request) error { <-ctx.Done(); return ctx.Err() }
	var list []*plugin.Plugin
	for name, del := range map[string]func(context.Context, *plugin.Request) error{"hangs": hangs, "quick": quick} {
		list = append(list, &plugin.Plugin{
			Name: name, About: "for tests", Conf: func() any { return new(struct{}) },
			Add: add, Del: del, Check: quick, Status: quick, GC: quick,
		})
	}
	return plugin.NewSession(list)
}

// gc reports a DEL that hangs, and removes the dead attachments of another network. If the machine is so busy
// that the other DEL takes too long as well, the next gc allows more time.
func TestDelThatHangs(t *testing.T) {
	rt := runtimeOf().With(chain.WithInvoker(&plugin.Builtin{NewSession: hanging}))
	for i, name := range []string{"hangs", "quick"} {
		l := list(t, fmt.Sprintf(`{"cniVersion":"1.1.0","name":%[1]q,"plugins":[{"type":%[1]q}]}`, name))
		if err := netns.Delete(attach(t, rt, l, "of-"+name, i)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(paths.Default().CNI, "results", "hangs-of-hangs-eth0")) })
	for limit := 200 * time.Millisecond; ; limit *= 3 {
		report, err := gc.Run(t.Context(), gc.Options{
			Paths: paths.Default(), Runtime: rt, NewSession: hanging, Apply: true, DelTime: limit,
		})
		late := fmt.Sprintf("DEL did not end within %v", limit)
		if err != nil && strings.Count(err.Error(), late) == 2 && limit < 10*time.Second {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), late) {
			t.Errorf("gc says: %v", err)
		}
		if report == nil || removed(report) != 1 {
			t.Errorf("%+v", report)
		}
		return
	}
}

// A gc waits for another one. It gives up and names the other process.
func TestWaitForAnotherGC(t *testing.T) {
	p := paths.Default()
	dir := filepath.Join(p.Run, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := durable.Lock(t.Context(), filepath.Join(dir, "node-gc.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	_, err = gc.Run(t.Context(), gc.Options{Paths: p, Runtime: runtimeOf(), NewSession: session, LockTime: 10 * time.Millisecond})
	for _, want := range []string{"node-gc.lock", fmt.Sprintf("held by process %d", os.Getpid()), "another gc is still running after 10ms"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("gc says %v, not %s", err, want)
		}
	}
}
