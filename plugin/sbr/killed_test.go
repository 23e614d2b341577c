// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// killedAt kills an ADD at its n-th step (plugintest.Killed).
func (w *world) killedAt(n int) (steps int) {
	w.t.Helper()
	prev, err := w.prev(0).Encode("1.1.0")
	must(w.t, err)
	return plugintest.Killed(w.t, &Plugin, &spec.Call{
		Verb: spec.Add, ContainerID: "c1", NetNS: w.ns, IfName: "net0", Path: []string{"/nonexistent"},
		Config: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","prevResult":%s}`, prev),
	}, n)
}

// TestKilledAnywhere kills an ADD at each step. DEL then removes everything. A second ADD before
// the DEL completes the work.
func TestKilledAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		last := false
		t.Run(fmt.Sprint("step ", n), func(t *testing.T) {
			w := newWorld(t, 1)
			want := w.table(unix.RT_TABLE_MAIN)
			last = w.killedAt(n) < n
			must(t, w.call(spec.Del, 0, ""))
			if rules := w.rules(); len(rules) > 0 {
				t.Errorf("rules left: %v", rules)
			}
			for _, table := range []int{100, 101} {
				w.same(fmt.Sprint("table ", table), w.table(table), "")
			}
			if n <= 2 { // nothing was moved yet
				w.same("main", w.table(unix.RT_TABLE_MAIN), want)
			}
		})
		t.Run(fmt.Sprint("step ", n, ", then ADD"), func(t *testing.T) {
			w := newWorld(t, 1)
			w.killedAt(n)
			must(t, w.call(spec.Add, 0, ""))
			must(t, w.call(spec.Check, 0, ""))
			must(t, w.call(spec.Del, 0, ""))
			if rules := w.rules(); len(rules) > 0 {
				t.Errorf("rules left: %v", rules)
			}
		})
		if last {
			return
		}
	}
}
