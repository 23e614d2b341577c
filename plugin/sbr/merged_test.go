// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// merge gives the default routes of net0 and net1 one metric, as plugins do. The kernel prints the two IPv6 routes
// as one with two next hops.
func (w *world) merge() {
	w.t.Helper()
	for n := range 2 {
		link, err := w.c.Link(fmt.Sprintf("net%d", n))
		must(w.t, err)
		for _, ip := range w.ips(n) {
			r := netlink.Route{LinkIndex: link.Attrs().Index, Dst: zero(ip.Gateway), Gw: ip.Gateway.AsSlice(), Priority: n + 1}
			must(w.t, w.c.RouteDel(&r))
			r.Priority = 1024
			must(w.t, w.c.RouteAddEcmp(&r))
		}
	}
}

// defaults lists the next hops of the default routes in the main table.
func (w *world) defaults() string {
	w.t.Helper()
	var out []string
	for n := range 2 {
		link, err := w.c.Link(fmt.Sprintf("net%d", n))
		must(w.t, err)
		routes, err := w.c.LinkRoutes(link.Attrs().Index, unix.RT_TABLE_MAIN)
		must(w.t, err)
		for _, r := range routes {
			if bits, _ := r.Dst.Mask.Size(); bits == 0 {
				out = append(out, nl.AddrOf(r.Gw).String())
			}
		}
	}
	return strings.Join(out, " ")
}

// TestMergedDefault: ADD removes net1's part of the default route that the kernel merged, and keeps net0's part.
func TestMergedDefault(t *testing.T) {
	w := newWorld(t, 2)
	w.merge()
	w.same("before", w.defaults(), "10.0.0.1 fd00::1 10.0.1.1 fd00:1::1")
	gatewayOnlyInRoute := func(c *spec.Call) {
		c.Config = []byte(strings.ReplaceAll(string(c.Config), `"gateway":"fd00:1::1"`, `"gateway":null`))
	}
	must(t, w.call(spec.Add, 1, "", gatewayOnlyInRoute))
	w.same("main", w.defaults(), "10.0.0.1 fd00::1")
	w.same("table 101", w.table(101), "::/0 fd00:1::1\nfd00:1::/64 <nil>")
	must(t, w.call(spec.Check, 1, ""))
	must(t, w.call(spec.Del, 1, ""))
	w.same("after DEL", w.defaults(), "10.0.0.1 fd00::1")
}

// TestMergedDefaultComesBack: an ADD that fails restores the routes that it removed, and leaves those of net0
// alone.
func TestMergedDefaultComesBack(t *testing.T) {
	w := newWorld(t, 2)
	w.merge()
	before := w.defaults()
	for n := 1; ; n++ {
		if err := w.failAt(n); err == nil {
			if n < 8 {
				t.Errorf("only %d steps: faults are not injected everywhere", n-1)
			}
			return
		}
		w.same(fmt.Sprintf("after a fault at step %d", n), w.defaults(), before)
	}
}

// failAt is an ADD of net1 that fails at a step.
func (w *world) failAt(n int) error {
	step := 0
	prev, err := w.prev(1).Encode("1.1.0")
	must(w.t, err)
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Fault = func(string) error {
			if step++; step == n {
				return fmt.Errorf("injected")
			}
			return nil
		}
		return s
	}}
	_, err = b.Invoke(w.t.Context(), name, &spec.Call{
		Verb: spec.Add, ContainerID: "c1", NetNS: w.ns, IfName: "net1", Path: []string{"/nonexistent"},
		Config: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"sbr","prevResult":%s}`, prev),
	})
	return err
}
