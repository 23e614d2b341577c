// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

// world is a container with some veth interfaces. netN has 10.0.N.2/24 and fd00:N::2/64. It has a
// default route through .1 with the metric N, and a route to 192.0.2.N.
type world struct {
	t  *testing.T
	ns string
	c  *nl.Conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T, interfaces int) *world {
	w := &world{t: t, ns: nettest.NewNS(t, "sbr")}
	ns, err := netns.Open(w.ns)
	must(t, err)
	w.c, err = nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(w.c.Close)
	for n := range interfaces {
		w.plug(n)
	}
	return w
}

func (w *world) plug(n int) {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("host%d", n)
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("net%d", n), PeerNamespace: netlink.NsFd(w.c.NS.Fd())}
	must(w.t, netlink.LinkAdd(veth))
	must(w.t, netlink.LinkSetUp(veth))
	w.t.Cleanup(func() { netlink.LinkDel(veth) }) //nolint:errcheck // may be gone
	link, err := w.c.Link(veth.PeerName)
	must(w.t, err)
	must(w.t, w.c.LinkSetUp(link))
	for _, ip := range w.ips(n) {
		must(w.t, w.c.AddrAdd(link, &netlink.Addr{IPNet: nl.IPNet(ip.Address), Flags: unix.IFA_F_NODAD}))
		must(w.t, w.c.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: zero(ip.Gateway), Gw: ip.Gateway.AsSlice(), Priority: n + 1}))
	}
	far := netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/32", n))
	must(w.t, w.c.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: nl.IPNet(far), Gw: w.ips(n)[0].Gateway.AsSlice(), MTU: 1300}))
}

func (w *world) ips(n int) []spec.IPConfig {
	index := 0
	return []spec.IPConfig{
		{Interface: &index, Address: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.2/24", n)), Gateway: netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", n))},
		{Interface: &index, Address: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::2/64", n)), Gateway: netip.MustParseAddr(fmt.Sprintf("fd00:%d::1", n))},
	}
}

// prev is the result of the plugin before sbr for netN.
func (w *world) prev(n int) *spec.Result {
	return &spec.Result{
		Interfaces: []spec.Interface{{Name: fmt.Sprintf("net%d", n), Sandbox: w.ns}}, IPs: w.ips(n),
		Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}, {Dst: netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/32", n))}},
	}
}

// call is one verb for netN; edit may change the call.
func (w *world) call(verb spec.Verb, n int, conf string, edit ...func(*spec.Call)) error {
	w.t.Helper()
	prev, err := w.prev(n).Encode("1.1.0")
	must(w.t, err)
	c := &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: w.ns, IfName: fmt.Sprintf("net%d", n), Path: []string{"/nonexistent"},
		Config: []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"sbr","prevResult":%s%s}`, prev, conf)),
	}
	for _, e := range edit {
		e(c)
	}
	b := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{&Plugin}) }}
	_, err = b.Invoke(context.Background(), name, c)
	return err
}

// table lists the routes of a table as "dst gateway src", sorted.
func (w *world) table(n int) string {
	w.t.Helper()
	routes, err := w.c.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: n}, netlink.RT_FILTER_TABLE)
	must(w.t, err)
	var out []string
	for _, r := range routes {
		if !r.Dst.IP.IsLinkLocalUnicast() && r.Dst.IP.String() != "ff00::" {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s %s", r.Dst, r.Gw, r.Src), " <nil>"))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func (w *world) rules() (out []string) {
	w.t.Helper()
	rules, err := w.c.Rules()
	must(w.t, err)
	for _, r := range rules {
		if r.Src != nil {
			out = append(out, fmt.Sprintf("%s %d", r.Src, r.Table))
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) same(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

// TestRoutesMove checks all of ADD and DEL: the rules, the tables, the routes that stay in the
// main table, and the way that a packet takes.
func TestRoutesMove(t *testing.T) {
	w := newWorld(t, 2)
	before := w.table(unix.RT_TABLE_MAIN)
	must(t, w.call(spec.Add, 1, ""))
	w.same("rules", strings.Join(w.rules(), "\n"), "10.0.1.2/32 100\nfd00:1::2/128 101")
	w.same("table 100", w.table(100), "0.0.0.0/0 10.0.1.1\n0.0.0.0/0 10.0.1.1\n10.0.1.0/24 <nil> 10.0.1.2\n192.0.2.1/32 10.0.1.1")
	w.same("table 101", w.table(101), "::/0 fd00:1::1\n::/0 fd00:1::1\nfd00:1::/64 <nil>")
	w.same("main", w.table(unix.RT_TABLE_MAIN), "0.0.0.0/0 10.0.0.1\n10.0.0.0/24 <nil> 10.0.0.2\n192.0.2.0/32 10.0.0.1\n::/0 fd00::1\nfd00::/64 <nil>")
	for src, want := range map[string]string{"10.0.0.2": "net0", "10.0.1.2": "net1", "fd00:0::2": "net0", "fd00:1::2": "net1"} {
		dst := map[bool]string{true: "198.51.100.1", false: "2001:db8::1"}[netip.MustParseAddr(src).Is4()]
		got, err := w.c.RouteGetWithOptions(netip.MustParseAddr(dst).AsSlice(), &netlink.RouteGetOptions{SrcAddr: netip.MustParseAddr(src).AsSlice()})
		must(t, err)
		link, err := w.c.LinkAt(got[0].LinkIndex)
		must(t, err)
		w.same("way from "+src, link.Attrs().Name, want)
	}
	must(t, w.call(spec.Check, 1, ""))
	must(t, w.call(spec.Del, 1, ""))
	w.same("rules after DEL", strings.Join(w.rules(), "\n"), "")
	w.same("table 100 after DEL", w.table(100), "")
	if now := w.table(unix.RT_TABLE_MAIN); !strings.Contains(now, "192.0.2.1/32 10.0.1.1") || strings.Contains(now, "0.0.0.0/0 10.0.1.1") || len(now) >= len(before) {
		t.Errorf("main after DEL:\n%s\nbefore ADD:\n%s", now, before)
	}
	must(t, w.call(spec.Del, 1, ""))
}

// TestOptions sets gateways, source hints, and a table that another program fills.
func TestOptions(t *testing.T) {
	w := newWorld(t, 2)
	must(t, w.call(spec.Add, 0, `,"gateways":["10.0.0.9"],"addSourceHints":true`))
	if got := w.table(100); !strings.Contains(got, "0.0.0.0/0 10.0.0.9") || !strings.Contains(got, "192.0.2.0/32 10.0.0.1") {
		t.Errorf("table 100:\n%s", got)
	}
	must(t, w.call(spec.Check, 0, `,"gateways":["10.0.0.9"],"addSourceHints":true`))
	main := w.table(unix.RT_TABLE_MAIN)
	must(t, w.call(spec.Add, 1, `,"table":4711`))
	w.same("rules", strings.Join(w.rules()[1:], "\n"), "10.0.1.2/32 4711\nfd00:1::2/128 4711\nfd00::2/128 101")
	w.same("main", w.table(unix.RT_TABLE_MAIN), main)
	must(t, w.call(spec.Check, 1, `,"table":4711`))
	if err := w.call(spec.Check, 1, `,"table":4712`); err == nil || !strings.Contains(err.Error(), "rule from 10.0.1.2 to table 4712 not found") {
		t.Errorf("CHECK of another table: %v", err)
	}
	must(t, w.call(spec.Del, 1, `,"table":4711`))
	must(t, w.call(spec.Del, 0, ""))
	w.same("rules after DEL", strings.Join(w.rules(), "\n"), "")
}

// TestSourceHints checks that the main table keeps one route of the interface: the route to the
// subnet, with the address as source. The route of another interface in the same subnet still
// comes first.
func TestSourceHints(t *testing.T) {
	w := newWorld(t, 1)
	const hints = `,"addSourceHints":true`
	const want = "10.0.0.0/24 <nil> 10.0.0.2\nfd00::/64 <nil> fd00::2"
	for range 2 {
		must(t, w.call(spec.Add, 0, hints))
		w.same("main", w.table(unix.RT_TABLE_MAIN), want)
	}
	must(t, w.call(spec.Check, 0, hints))
	subnet := nl.IPNet(netip.MustParsePrefix("10.0.0.0/24"))
	net0, err := w.c.Link("net0")
	must(t, err)
	must(t, w.c.RouteDel(&netlink.Route{LinkIndex: net0.Attrs().Index, Dst: subnet, Scope: netlink.SCOPE_LINK}))
	if err := w.call(spec.Check, 0, hints); err == nil || !strings.Contains(err.Error(), "10.0.0.0/24") {
		t.Errorf("CHECK without the route: %v", err)
	}
	other, err := w.c.Link("lo")
	must(t, err)
	must(t, w.c.LinkSetUp(other))
	must(t, w.c.RouteAdd(&netlink.Route{LinkIndex: other.Attrs().Index, Dst: subnet, Scope: netlink.SCOPE_LINK}))
	must(t, w.call(spec.Add, 0, hints))
	routes, err := w.c.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: subnet}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	must(t, err)
	if len(routes) != 2 || routes[0].LinkIndex != other.Attrs().Index || routes[1].LinkIndex != net0.Attrs().Index {
		t.Errorf("routes to the subnet: %v", routes)
	}
	must(t, w.call(spec.Del, 0, hints))
}

// TestManyAtOnce adds and removes interfaces of one container at the same time. No two ever share
// a table.
func TestManyAtOnce(t *testing.T) {
	const many = 12
	w := newWorld(t, many)
	each := func(verb spec.Verb) {
		var wg sync.WaitGroup
		for n := range many {
			wg.Go(func() {
				if err := w.call(verb, n, ""); err != nil {
					t.Errorf("%s %d: %v", verb, n, err)
				}
			})
		}
		wg.Wait()
	}
	each(spec.Add)
	tables := map[string]bool{}
	for _, r := range w.rules() {
		tables[strings.Fields(r)[1]] = true
	}
	if len(tables) != 2*many {
		t.Errorf("%d tables for %d addresses: %v", len(tables), 2*many, w.rules())
	}
	each(spec.Check)
	each(spec.Del)
	w.same("rules after DEL", strings.Join(w.rules(), "\n"), "")
}
