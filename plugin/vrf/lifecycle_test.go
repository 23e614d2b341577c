// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestCheckNotices: CHECK reports the loss of each object that ADD made.
func TestCheckNotices(t *testing.T) {
	link := func(w *world) netlink.Link {
		l, err := w.c.Link("net0")
		must(t, err)
		return l
	}
	for what, damage := range map[string]struct {
		do   func(*world) error
		conf string
		msg  string
	}{
		"the VRF":        {func(w *world) error { return w.c.LinkDel(w.vrf("blue")) }, "", "VRF blue not found; failed to find net0 associated to vrf blue"},
		"the VRF, up":    {func(w *world) error { return w.c.LinkSetDown(w.vrf("blue")) }, "", "VRF blue is down"},
		"its table":      {func(*world) error { return nil }, `,"table":77`, "VRF blue has routing table 1 instead of 77"},
		"the membership": {func(w *world) error { return w.c.LinkSetNoMaster(link(w)) }, "", "failed to find net0 associated to vrf blue"},
		"a route": {func(w *world) error {
			return w.c.RouteDel(&netlink.Route{LinkIndex: link(w).Attrs().Index, Dst: ipNet("192.0.2.0/32"), Table: 1})
		}, "", "Expected Route {192.0.2.0/32 <nil>} not found in routing table"},
		"the interface": {func(w *world) error { return w.c.LinkDel(link(w)) }, "", "failed to find net0 associated to vrf blue"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 1)
			must(t, w.call(spec.Add, 0, `"vrfname":"blue"`))
			must(t, w.call(spec.Check, 0, `"vrfname":"blue"`))
			must(t, damage.do(w))
			if err := w.call(spec.Check, 0, `"vrfname":"blue"`+damage.conf); err == nil || !strings.Contains(err.Error(), damage.msg) {
				t.Errorf("%v, want %q", err, damage.msg)
			}
			must(t, w.call(spec.Del, 0, `"vrfname":"blue"`))
			if w.vrf("blue") != nil {
				t.Error("the VRF is left")
			}
		})
	}
}

// TestDel runs DEL with less and less information.
func TestDel(t *testing.T) {
	const conf = `"vrfname":"blue"`
	bare := func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.1.0","name":"net"}`) }
	noRecord := func(*world) { must(t, os.RemoveAll("/run/patchbay/attachments")) }
	unlink := func(w *world) {
		l, err := w.c.Link("net0")
		must(t, err)
		must(t, w.c.LinkDel(l))
	}
	for what, tc := range map[string]struct {
		before []func(*world)
		edit   []func(*spec.Call)
		left   bool
	}{
		"nothing special":              {nil, nil, false},
		"the interface gone":           {[]func(*world){unlink}, nil, false}, // the reference returns an error here
		"no configuration to speak of": {nil, []func(*spec.Call){bare}, false},
		"no record (the reference's)":  {[]func(*world){noRecord}, nil, false},
		"no record, no interface":      {[]func(*world){noRecord, unlink}, nil, false},
		"no record, no configuration":  {[]func(*world){noRecord}, []func(*spec.Call){bare}, true},
		"no namespace":                 {nil, []func(*spec.Call){func(c *spec.Call) { c.NetNS = "" }}, true},
		"a namespace that is gone":     {nil, []func(*spec.Call){func(c *spec.Call) { c.NetNS = "/run/netns/gone" }}, true},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 1)
			must(t, w.call(spec.Add, 0, conf))
			for _, do := range tc.before {
				do(w)
			}
			must(t, w.call(spec.Del, 0, conf, tc.edit...))
			if left := w.vrf("blue") != nil; left != tc.left {
				t.Errorf("the VRF is left: %v, want %v", left, tc.left)
			}
			must(t, w.call(spec.Del, 0, conf, tc.edit...))
		})
	}
}

// TestOfOthers checks that a VRF that existed before is kept, and that another link with the name
// is left alone.
func TestOfOthers(t *testing.T) {
	w := newWorld(t, 2)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "blue"
	must(t, w.c.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: 42}))
	must(t, w.c.LinkSetUp(w.vrf("blue")))
	must(t, w.call(spec.Add, 0, `"vrfname":"blue"`))
	must(t, w.call(spec.Check, 0, `"vrfname":"blue"`))
	must(t, w.call(spec.Del, 0, `"vrfname":"blue"`))
	if v := w.vrf("blue"); v == nil || v.Table != 42 {
		t.Errorf("VRF: %+v", v)
	}
	if err := w.call(spec.Add, 0, `"vrfname":"net1"`); err == nil || !strings.Contains(err.Error(), "Netlink net1 is not a VRF") {
		t.Errorf("ADD: %v", err)
	}
	must(t, w.call(spec.Del, 0, `"vrfname":"net1"`))
	if _, err := w.c.Link("net1"); err != nil {
		t.Error(err)
	}
}

// TestGC removes the attachments that are not on the list.
func TestGC(t *testing.T) {
	w := newWorld(t, 1)
	must(t, w.call(spec.Add, 0, `"vrfname":"blue"`))
	gc := func(valid string) {
		must(t, w.call(spec.GC, 0, `"cni.dev/valid-attachments":`+valid, func(c *spec.Call) { c.ContainerID, c.NetNS, c.IfName = "", "", "" }))
	}
	gc(`[{"containerID":"c1","ifname":"net0"}]`)
	if _, err := os.Stat("/run/patchbay/attachments/net"); err != nil {
		t.Error("GC took a valid attachment's record")
	}
	gc(`[]`)
	if _, err := os.Stat("/run/patchbay/attachments/net"); err == nil {
		t.Error("GC left the record")
	}
}

// TestStatus checks that STATUS fails on a kernel without VRFs, and that STATUS makes no VRF.
func TestStatus(t *testing.T) {
	w := &world{t: t, ns: "/run/netns/none"}
	err := w.call(spec.Status, 0, `"vrfname":"blue"`, func(c *spec.Call) { c.ContainerID, c.NetNS, c.IfName = "", "", "" })
	probe := nettest.LinkKind("vrf").Probe()
	if (err == nil) != (probe == nil) || err != nil && spec.ErrorCode(err) != spec.CodeNotAvailable {
		t.Errorf("STATUS: %v; the kernel: %v", err, probe)
	}
	if _, err := netlink.LinkByName("patchbay-probe"); err == nil {
		t.Error("STATUS made a link")
	}
}
