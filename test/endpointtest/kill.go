// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/nettest"
)

// testKill: kill -9 at any moment of an ADD; DEL and GC each remove what it leaves.
func testKill(w *World, c Child) {
	w.Master("m0")
	dir := plugintest.Install(w.T, c.Plugins[:2]...)
	p := w.Pod("kill", c.on("m0", Dual))
	tries := 60
	if testing.Short() {
		tries = 12
	}
	kills := nettest.NewKills(w, "ADD")
	for n := 0; kills.More(tries); n++ {
		kills.Try(func(after time.Duration) bool { return p.Killed(dir, after) })
		w.collect(p, []spec.Verb{spec.Del, spec.GC}[n%2])
		links, err := p.Conn().LinkList()
		if err != nil || len(links) != 1 {
			w.Fatalf("try %d: links %v (%v)", n, links, err)
		}
		w.Forgotten()
	}
}

// Killed runs an ADD as a process, kills it (SIGKILL) after a time and reports whether the
// kill came before its end.
func (p *Pod) Killed(dir string, after time.Duration) bool {
	p.w.Helper()
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Add, []string{dir}, []byte("{"+p.Conf+"}")
	ctx, cancel := context.WithTimeout(p.w.Context(), after)
	defer cancel()
	_, err := (&invoke.Exec{Stderr: io.Discard}).Run(ctx, filepath.Join(dir, p.w.kind), &call)
	if ctx.Err() == nil {
		Must(p.w, err)
	}
	return err != nil
}
