// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// defaults returns the pod's default routes of a family, as "interface gateway".
func (w *world) defaults(v4 bool) (list []string) {
	w.t.Helper()
	ns, err := netns.Open(w.ns)
	must(w.t, err)
	conn, err := nl.In(ns, "/proc")
	must(w.t, err)
	defer conn.Close()
	links, err := conn.LinkList()
	must(w.t, err)
	for _, l := range links {
		routes, err := conn.LinkRoutes(l.Attrs().Index, unix.RT_TABLE_MAIN)
		must(w.t, err)
		for _, rt := range routes {
			if got, ok := defaultOf(rt, spec.DefaultDst(v4)); ok {
				list = append(list, fmt.Sprintf("%s %s", l.Attrs().Name, got.Gateway))
			}
		}
	}
	return list
}

const dual = `{"cniVersion":"1.1.0","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.94.0.0/24"}],[{"subnet":"fd94::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`

// 4.1.2.1.9 The annotation says which network has the pod's default route.
func TestDefaultRoute(t *testing.T) {
	define(t, "shop/dual", dual, "shop/store", store)
	for name, c := range map[string]struct {
		annotation string
		v4, v6     string
		inResult   bool
	}{
		"nobody asks":                       {annotation: `[{"name":"store"}]`, v4: "eth0 10.93.0.1", inResult: true},
		"v4; the default network's is gone": {annotation: `[{"name":"store","default-route":["10.91.0.1"]}]`, v4: "net1 10.91.0.1"},
		"v4 keeps v6; the others' are gone": {annotation: `[{"name":"dual"},{"name":"store","default-route":["10.91.0.1"]}]`, v4: "net2 10.91.0.1", v6: "net1 fd94::1"},
		"both":                              {annotation: `[{"name":"dual","default-route":["10.94.0.1","fd94::1"]}]`, v4: "net1 10.94.0.1", v6: "net1 fd94::1"},
		"empty keeps what its plugins made": {annotation: `[{"name":"dual","default-route":[]}]`, v4: "net1 10.94.0.1", v6: "net1 fd94::1"},
		"empty, and its plugins made none":  {annotation: `[{"name":"store","default-route":[]}]`, v4: "eth0 10.93.0.1", inResult: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.annotation)
			result := w.add()
			if v4, v6 := strings.Join(w.defaults(true), ", "), strings.Join(w.defaults(false), ", "); v4 != c.v4 || v6 != c.v6 {
				t.Errorf("default routes %q and %q, want %q and %q", v4, v6, c.v4, c.v6)
			}
			if has := slices.ContainsFunc(result.Routes, func(rt spec.Route) bool { return rt.Dst.Bits() == 0 }); has != c.inResult {
				t.Errorf("the result has the routes %+v", result.Routes)
			}
			data, err := result.Encode("1.1.0")
			must(t, err)
			if _, err := w.call(spec.Check, `,"prevResult":`+string(data)); err != nil { // CRI-O calls it after each ADD
				t.Errorf("CHECK: %v", err)
			}
			_, err = w.call(spec.Del, "")
			must(t, err)
		})
	}
}

// CHECK notices another default route.
func TestOtherDefaultRoute(t *testing.T) {
	define(t, "shop/store", store)
	w := newWorld(t, `[{"name":"store","default-route":["10.91.0.1"]}]`)
	data, err := w.add().Encode("1.1.0")
	must(t, err)
	ns, err := netns.Open(w.ns)
	must(t, err)
	conn, err := nl.In(ns, "/proc")
	must(t, err)
	defer conn.Close()
	eth0, err := conn.Link("eth0")
	must(t, err)
	must(t, conn.AddRoute(nl.Route{Link: eth0.Attrs().Index, Dst: spec.DefaultDst(true), Priority: 7, Scope: unix.RT_SCOPE_LINK}))
	if _, err := w.call(spec.Check, `,"prevResult":`+string(data)); err == nil || !strings.Contains(err.Error(), "there is another default route than that through net1") {
		t.Errorf("CHECK: %v", err)
	}
	_, err = w.call(spec.Del, "")
	must(t, err)
}

// If a later step fails, the pod's default routes are as before.
func TestRoutesComeBack(t *testing.T) {
	w := newWorld(t, "")
	ns, err := netns.Open(w.ns)
	must(t, err)
	conn, err := nl.In(ns, "/proc")
	must(t, err)
	defer conn.Close()
	for i, name := range []string{"eth0", "net1"} {
		must(t, conn.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}))
		for _, end := range []string{name, name + "-peer"} {
			link, err := conn.Link(end)
			must(t, err)
			must(t, conn.LinkSetUp(link))
		}
		link, err := conn.Link(name)
		must(t, err)
		must(t, conn.AddrAdd(link, &netlink.Addr{IPNet: nl.IPNet(mustPrefix(fmt.Sprintf("10.9%d.0.2/24", 5+i)))}))
	}
	eth0, err := conn.Link("eth0")
	must(t, err)
	must(t, conn.AddRoute(nl.Route{Link: eth0.Attrs().Index, Dst: spec.DefaultDst(true), Gateway: netip.MustParseAddr("10.95.0.1"), Priority: 5}))
	env := &netstate.Env{Sandbox: conn}
	only := onlyDefault{link: "net1", dst: spec.DefaultDst(true), gateway: netip.MustParseAddr("10.96.0.1")}
	undo, err := only.Ensure(t.Context(), env)
	must(t, err)
	if got := w.defaults(true); !slices.Equal(got, []string{"net1 10.96.0.1"}) {
		t.Errorf("default routes %q", got)
	}
	must(t, undo(t.Context()))
	if got := w.defaults(true); !slices.Equal(got, []string{"eth0 10.95.0.1"}) {
		t.Errorf("after the undo %q", got)
	}
	only.gateway = netip.MustParseAddr("192.0.2.1") // no route leads there
	if _, err := only.Ensure(t.Context(), env); err == nil {
		t.Error("a gateway that nothing leads to is accepted")
	}
	if got := w.defaults(true); !slices.Equal(got, []string{"eth0 10.95.0.1"}) {
		t.Errorf("after an error %q", got)
	}
}
