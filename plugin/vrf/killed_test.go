// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
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
		Config: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","vrfname":"blue","prevResult":%s}`, prev),
	}, n)
}

// TestKilledAnywhere kills an ADD at each step. DEL then removes everything.
func TestKilledAnywhere(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("vrf"))
	for n := 1; ; n++ {
		last := false
		t.Run(fmt.Sprint("step ", n), func(t *testing.T) {
			w := newWorld(t, 1)
			last = w.killedAt(n) < n
			must(t, w.call(spec.Del, 0, `"vrfname":"blue"`))
			if w.vrf("blue") != nil {
				t.Error("the VRF is left")
			}
			if _, err := os.Stat("/run/patchbay/attachments/net"); err == nil {
				t.Error("the record is left")
			}
		})
		if last {
			return
		}
	}
}

// TestUnmarked kills an ADD after it made the VRF and before it marked the VRF.
func TestUnmarked(t *testing.T) {
	w := newWorld(t, 1)
	w.killedAt(3) // the VRF exists, but the interface is not in it
	must(t, w.c.SetAlias("blue", "", nl.PortFlags{}))
	must(t, w.call(spec.Del, 0, `"vrfname":"blue"`))
	if w.vrf("blue") != nil {
		t.Error("the VRF is left")
	}
}
