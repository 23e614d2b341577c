// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// world is a container with interfaces. netN has 10.0.N.2/24 and fd00:N::2/64, and a default
// route through .1 with the metric N+1. It also has a route to 192.0.2.N/32 through a next hop,
// and the link has a route to that next hop.
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
	nettest.Need(t, nettest.LinkKind("vrf"))
	w := &world{t: t, ns: nettest.NewNS(t, "vrf")}
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
	add := func(r netlink.Route) {
		r.LinkIndex = link.Attrs().Index
		must(w.t, w.c.RouteAdd(&r))
	}
	for _, ip := range w.prev(n).IPs {
		must(w.t, w.c.AddrAdd(link, &netlink.Addr{IPNet: ipNet(ip.Address.String()), Flags: unix.IFA_F_NODAD}))
		zero := map[bool]string{true: "0.0.0.0/0", false: "::/0"}[ip.Address.Addr().Is4()]
		add(netlink.Route{Dst: ipNet(zero), Gw: ip.Gateway.AsSlice(), Priority: n + 1})
	}
	add(netlink.Route{Dst: ipNet(fmt.Sprintf("198.51.100.%d/32", n)), Scope: netlink.SCOPE_LINK})
	add(netlink.Route{Dst: ipNet(fmt.Sprintf("192.0.2.%d/32", n)), Gw: net.IPv4(198, 51, 100, byte(n)), MTU: 1300})
}

func ipNet(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (w *world) prev(n int) *spec.Result {
	index := 0
	return &spec.Result{
		Interfaces: []spec.Interface{{Name: fmt.Sprintf("net%d", n), Sandbox: w.ns}},
		IPs: []spec.IPConfig{
			{Interface: &index, Address: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.2/24", n)), Gateway: netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", n))},
			{Interface: &index, Address: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::2/64", n)), Gateway: netip.MustParseAddr(fmt.Sprintf("fd00:%d::1", n))},
		},
		Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}, {Dst: netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/32", n))}},
	}
}

// call is one verb for netN; edit may change the call.
func (w *world) call(verb spec.Verb, n int, conf string, edit ...func(*spec.Call)) error {
	w.t.Helper()
	return w.faulty(verb, n, conf, nil, edit...)
}

func (w *world) faulty(verb spec.Verb, n int, conf string, fault func(string) error, edit ...func(*spec.Call)) error {
	w.t.Helper()
	prev, err := w.prev(n).Encode("1.1.0")
	must(w.t, err)
	c := &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: w.ns, IfName: fmt.Sprintf("net%d", n), Path: []string{"/nonexistent"},
		Config: []byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"vrf","prevResult":%s,%s}`, prev, conf)),
	}
	for _, e := range edit {
		e(c)
	}
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Fault = fault
		return s
	}}
	_, err = b.Invoke(context.Background(), name, c)
	return err
}

// table lists the routes of netN in a table, sorted.
func (w *world) table(n, table int) string {
	w.t.Helper()
	link, err := w.c.Link(fmt.Sprintf("net%d", n))
	must(w.t, err)
	routes, err := w.c.LinkRoutes(link.Attrs().Index, table)
	must(w.t, err)
	var out []string
	for _, r := range routes {
		if !r.Dst.IP.IsLinkLocalUnicast() {
			out = append(out, fmt.Sprintf("%s via %v mtu %d metric %d", r.Dst, r.Gw, r.MTU, r.Priority))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func (w *world) addresses(n int) (out []string) {
	w.t.Helper()
	link, err := w.c.Link(fmt.Sprintf("net%d", n))
	must(w.t, err)
	list, err := w.c.Addrs(link.Attrs().Index)
	must(w.t, err)
	for _, a := range list {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 && !a.Prefix.Addr().IsLinkLocalUnicast() {
			w.t.Errorf("%s is tentative", a.Prefix)
		}
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix.String())
		}
	}
	return out
}

func (w *world) vrf(name string) *netlink.Vrf {
	w.t.Helper()
	link, err := w.c.Link(name)
	if nl.IsNotFound(err) {
		return nil
	}
	must(w.t, err)
	return link.(*netlink.Vrf)
}

// TestRoutesAndAddressesMove checks that the VRF has everything that the link had.
func TestRoutesAndAddressesMove(t *testing.T) {
	for _, keep := range []string{"0", "1"} {
		w := newWorld(t, 2)
		must(t, w.c.SetSysctl("net/ipv6/conf/net1/keep_addr_on_down", keep))
		routes, addrs := w.table(1, unix.RT_TABLE_MAIN), w.addresses(1)
		others := w.table(0, unix.RT_TABLE_MAIN)
		must(t, w.call(spec.Add, 1, `"vrfname":"blue"`))
		v := w.vrf("blue")
		if v == nil || v.Table != 1 || v.Flags&net.FlagUp == 0 {
			t.Fatalf("VRF: %+v", v)
		}
		if got := w.table(1, 1); got != routes {
			t.Errorf("keep_addr_on_down=%s: routes in the VRF:\n%s\nwant:\n%s", keep, got, routes)
		}
		if got := w.addresses(1); !slices.Equal(got, addrs) {
			t.Errorf("keep_addr_on_down=%s: addresses %v, want %v", keep, got, addrs)
		}
		if got := w.table(1, unix.RT_TABLE_MAIN); got != "" {
			t.Errorf("routes left in main:\n%s", got)
		}
		if got := w.table(0, unix.RT_TABLE_MAIN); got != others {
			t.Errorf("another interface's routes:\n%s\nwant:\n%s", got, others)
		}
		must(t, w.call(spec.Check, 1, `"vrfname":"blue"`))
		if err := w.call(spec.Add, 1, `"vrfname":"blue"`); err == nil || !strings.Contains(err.Error(), "interface net1 has already a master set: blue") {
			t.Errorf("second ADD: %v", err)
		}
		must(t, w.call(spec.Check, 1, `"vrfname":"blue"`))
		must(t, w.call(spec.Del, 1, `"vrfname":"blue"`))
		if w.vrf("blue") != nil {
			t.Error("the VRF is still there")
		}
		must(t, w.call(spec.Del, 1, `"vrfname":"blue"`))
		w.unplug()
	}
}

func (w *world) unplug() {
	for n := range 8 {
		if l, err := netlink.LinkByName(fmt.Sprintf("host%d", n)); err == nil {
			must(w.t, netlink.LinkDel(l))
		}
	}
	must(w.t, netns.Delete(w.ns))
	must(w.t, netns.Create(w.ns)) // the cleanup deletes this namespace
	must(w.t, netns.Delete(w.ns))
}

// TestShared puts several interfaces into one VRF. The last interface removes it, whichever made it.
func TestShared(t *testing.T) {
	w := newWorld(t, 3)
	must(t, w.call(spec.Add, 0, `"vrfname":"blue","table":1001`))
	must(t, w.call(spec.Add, 1, `"vrfname":"blue"`))
	err := w.call(spec.Add, 2, `"vrfname":"blue","table":1002`)
	if spec.ErrorCode(err) != spec.CodeInvalidConfig || !strings.Contains(err.Error(), "VRF blue already exist with different routing table 1001") {
		t.Errorf("another table: %v", err)
	}
	must(t, w.call(spec.Add, 2, `"vrfname":"red"`))
	if v := w.vrf("red"); v.Table != 1 {
		t.Errorf("red has table %d", v.Table)
	}
	must(t, w.call(spec.Del, 0, `"vrfname":"blue","table":1001`))
	must(t, w.call(spec.Check, 1, `"vrfname":"blue"`))
	must(t, w.call(spec.Del, 1, `"vrfname":"blue"`))
	if w.vrf("blue") != nil || w.vrf("red") == nil {
		t.Error("blue is left, or red is gone")
	}
	must(t, w.call(spec.Del, 2, `"vrfname":"red"`))
}

// TestTablesOfOthers checks that an ADD does not take a table that a rule, a route or the kernel
// uses.
func TestTablesOfOthers(t *testing.T) {
	w := newWorld(t, 2)
	rule := netlink.NewRule()
	rule.Src, rule.Table = ipNet("10.9.9.9/32"), 1
	must(t, w.c.RuleAdd(rule))
	link, err := w.c.Link("net0")
	must(t, err)
	must(t, w.c.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet("10.77.0.0/16"), Scope: netlink.SCOPE_LINK, Table: 2}))
	must(t, w.call(spec.Add, 1, `"vrfname":"blue"`))
	if v := w.vrf("blue"); v.Table != 3 {
		t.Errorf("table %d", v.Table)
	}
}

// TestManyAtOnce adds many interfaces at once. Interfaces that name the same VRF share it, and each
// VRF has its own table.
func TestManyAtOnce(t *testing.T) {
	const many = 8
	var w *world
	each := func(verb spec.Verb, conf func(int) string) {
		t.Helper()
		var wg sync.WaitGroup
		for n := range many {
			wg.Go(func() {
				if err := w.call(verb, n, conf(n)); err != nil {
					t.Errorf("%s %d: %v", verb, n, err)
				}
			})
		}
		wg.Wait()
	}
	for _, conf := range []func(int) string{
		func(int) string { return `"vrfname":"blue"` },
		func(n int) string { return fmt.Sprintf(`"vrfname":"v%d"`, n) },
	} {
		w = newWorld(t, many)
		each(spec.Add, conf)
		tables := map[uint32]bool{}
		links, err := w.c.LinkList()
		must(t, err)
		for _, l := range links {
			if v, ok := l.(*netlink.Vrf); ok && tables[v.Table] {
				t.Errorf("two VRFs have table %d", v.Table)
			} else if ok {
				tables[v.Table] = true
			}
		}
		each(spec.Check, conf)
		each(spec.Del, conf)
		if links, err := w.c.LinkList(); err != nil || len(links) != many+1 { // the VRFs and lo
			t.Errorf("%d links are left, %v", len(links), err)
		}
		w.unplug()
	}
}

// TestFailureAfterwards lets a later plugin of the chain fail. The link gets its addresses and
// routes back.
func TestFailureAfterwards(t *testing.T) {
	w := newWorld(t, 1)
	routes, addrs := w.table(0, unix.RT_TABLE_MAIN), w.addresses(0)
	fault := func(step string) error {
		if step == "commit" {
			return errors.New("too bad")
		}
		return nil
	}
	if err := w.faulty(spec.Add, 0, `"vrfname":"blue"`, fault); err == nil {
		t.Fatal("no fault")
	}
	if got := w.table(0, unix.RT_TABLE_MAIN); got != routes {
		t.Errorf("routes:\n%s\nwant:\n%s", got, routes)
	}
	if got := w.addresses(0); !slices.Equal(got, addrs) || w.vrf("blue") != nil {
		t.Errorf("addresses %v, want %v; VRF %v", got, addrs, w.vrf("blue"))
	}
}
