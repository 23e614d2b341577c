// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// testKill: kill -9 at any moment of an ADD; what it leaves goes with DEL, and
// with GC.
func testKill(w *World, c Child) {
	w.Master("m0")
	dir := plugintest.Install(w.T, c.Plugins[:2]...)
	p := w.Pod("kill", c.on("m0", Dual))
	usual := p.Killed(dir, time.Minute)
	Must(w, p.Do(spec.Del))
	tries, early := 60, 0
	if testing.Short() {
		tries = 12
	}
	for n := range tries {
		after := time.Duration(rand.Int64N(int64(usual) * 5 / 4))
		if p.Killed(dir, after) <= after {
			early++
		}
		w.collect(p, []spec.Verb{spec.Del, spec.GC}[n%2])
		links, err := p.Conn().LinkList()
		if err != nil || len(links) != 1 {
			w.Fatalf("try %d, killed after %v: links %v (%v)", n, after, links, err)
		}
		w.Forgotten()
	}
	if early == tries {
		w.Errorf("none of %d processes was killed: the test proves nothing", tries)
	}
}

// Killed runs an ADD as a process, kills it (SIGKILL) after a time and says how
// long it ran.
func (p *Pod) Killed(dir string, after time.Duration) time.Duration {
	p.w.Helper()
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Add, []string{dir}, []byte("{"+p.Conf+"}")
	ctx, cancel := context.WithTimeout(p.w.Context(), after)
	defer cancel()
	start := time.Now()
	_, _ = (&invoke.Exec{Stderr: io.Discard}).Run(ctx, filepath.Join(dir, p.w.kind), &call) // killed
	return time.Since(start)
}
