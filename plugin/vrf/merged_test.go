// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// merge gives the IPv6 default routes of all interfaces one metric, as plugins do. The kernel prints them as one
// route with several next hops.
func (w *world) merge(interfaces int) {
	w.t.Helper()
	for n := range interfaces {
		link, err := w.c.Link(fmt.Sprintf("net%d", n))
		must(w.t, err)
		r := netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet("::/0"), Gw: w.prev(n).IPs[1].Gateway.AsSlice(), Priority: n + 1}
		must(w.t, w.c.RouteDel(&r))
		r.Priority = 1024
		must(w.t, w.c.RouteAddEcmp(&r))
	}
}

const merged = "::/0 via fd00:%d::1 mtu 0 metric 1024"

func (w *world) hasDefault(n, table int, want bool) {
	w.t.Helper()
	line := strings.ReplaceAll(fmt.Sprintf(merged, n), "fd00:0::1", "fd00::1")
	if got := w.table(n, table); strings.Contains(got, line) != want {
		w.t.Errorf("default route of net%d in table %d: want %t; there is\n%s", n, table, want, got)
	}
}

// TestMergedDefault: an interface takes its part of a merged default route into the VRF. The parts of other
// interfaces stay, in the main table and in the VRF's.
func TestMergedDefault(t *testing.T) {
	w := newWorld(t, 3)
	w.merge(3)
	for n := 1; n < 3; n++ {
		must(t, w.call(spec.Add, n, `"vrfname":"red","table":77`))
	}
	w.hasDefault(0, unix.RT_TABLE_MAIN, true)
	for n := 1; n < 3; n++ {
		w.hasDefault(n, unix.RT_TABLE_MAIN, false)
		w.hasDefault(n, 77, true)
		must(t, w.call(spec.Check, n, `"vrfname":"red","table":77`))
	}
	must(t, w.call(spec.Del, 2, `"vrfname":"red","table":77`))
	w.hasDefault(1, 77, true)
}

// TestMergedDefaultComesBack: an ADD that fails puts the route back beside the other interface's.
func TestMergedDefaultComesBack(t *testing.T) {
	w := newWorld(t, 2)
	w.merge(2)
	last := func(step string) error {
		if step == "commit" {
			return errors.New("injected")
		}
		return nil
	}
	if err := w.faulty(spec.Add, 1, `"vrfname":"red"`, last); err == nil {
		t.Fatal("no fault was injected")
	}
	w.hasDefault(0, unix.RT_TABLE_MAIN, true)
	w.hasDefault(1, unix.RT_TABLE_MAIN, true)
}
