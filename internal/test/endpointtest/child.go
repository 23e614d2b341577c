// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Child is a plugin that puts a link of the container on top of a master.
type Child struct {
	Plugins []*plugin.Plugin // the plugin itself, host-local, static
	Conf    string           // its keys in addition to master and ipam, such as `"vlanId": 5, `
	Default bool             // it finds a master by itself
}

// Run tests, beyond the contract, what all plugins of this kind share. DEL and GC, for example,
// need only names.
func (c Child) Run(t *testing.T) {
	nettest.Need(t, nettest.LinkKind(c.kind()))
	for name, test := range map[string]func(*World, Child){
		"del": testDel, "foreign": testForeign, "killed": testKilled, "gc": testGC, "inside": testInside,
		"check": testCheck, "result": testResult, "ipv6": testIPv6, "status": testStatus, "ipam": testIPAM, "kill": testKill,
	} {
		t.Run(name, func(t *testing.T) { test(New(t, append(c.Plugins, looker())...), c) })
	}
}

// RunAlone is the part of Run for a link without a master. Its plugin does not know the key master.
func (c Child) RunAlone(t *testing.T) {
	for name, test := range map[string]func(*World, Child){
		"del": testDel, "killed": testKilled, "gc": testGC, "ipam": testIPAM, "kill": testKill,
	} {
		t.Run(name, func(t *testing.T) { test(New(t, append(c.Plugins, looker())...), c) })
	}
}

func (c Child) kind() string { return c.Plugins[0].Name }

// on returns a configuration with a master and more keys.
func (c Child) on(master, more string) string {
	return fmt.Sprintf(`%s"master": %q, %s`, c.Conf, master, more)
}

// Dual is the section ipam of host-local with both families.
const Dual = `"ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
	"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`

// Master creates a veth pair between host and router. The host's end is the master of the tested
// links.
func (w *World) Master(name string) netlink.Link {
	w.Helper()
	node.Join(w.Host, name, w.Router, name)
	return w.HostLink(name)
}

// Detached checks that a pod has no interface, that the network has no address and the attachment
// no record, and that a second DEL succeeds.
func (w *World) Detached(p *Pod) {
	w.Helper()
	if _, err := p.Conn().Link("eth0"); !nl.IsNotFound(err) {
		w.Errorf("eth0 is still in %s (%v)", p.Name, err)
	}
	w.Forgotten()
	if err := p.Do(spec.Del); err != nil {
		w.Errorf("DEL again: %v", err)
	}
}

// Forgotten checks that the network has no address and no record.
func (w *World) Forgotten() {
	w.Helper()
	for _, pattern := range []string{"/var/lib/cni/networks/net/*[.:]*", "/run/patchbay/attachments/net/*"} {
		left, err := filepath.Glob(pattern)
		for _, path := range left {
			if !strings.Contains(path, "last_reserved_ip") {
				w.Errorf("left: %s (%v)", path, err)
			}
		}
	}
}

// testDel checks that DEL works whatever has happened to the environment and the configuration.
func testDel(w *World, c Child) {
	good := c.on("m0", Dual)
	for name, happen := range map[string]func(p *Pod){
		"master":  func(*Pod) { w.Host.Delete("m0") },
		"result":  func(p *Pod) { p.Result = nil },
		"netns":   func(p *Pod) { p.Call.NetNS = "" },
		"another": func(p *Pod) { p.Call.NetNS = w.Pod("other", good).Call.NetNS },
		"args":    func(p *Pod) { p.Call.Args = "x;=;MAC=1=2" },
		"config": func(p *Pod) {
			p.Conf = strings.Replace(p.Conf, good, `"master": ["x"], "mode": "x", "vlanId": 9999, "mtu": -1, `+Dual, 1)
		},
		"record": func(*Pod) { w.LoseRecords() },
	} {
		w.Master("m0")
		p := w.Pod(name, good)
		Must(w, p.Do(spec.Add))
		happen(p)
		if err := p.Do(spec.Del); err != nil {
			w.Errorf("%s: %v", name, err)
		}
		w.Detached(p)
		w.Host.Delete("m0")
	}
	if !c.Default {
		return
	}
	p := w.Pod("route", c.Conf+Dual).Add()
	w.Want("master", w.parent(p), "uplink")
	Must(w, w.HostConn().LinkAddAltName(w.Master("m9"), "a-long-alternative-name"))
	long := w.Pod("long", c.on("a-long-alternative-name", Static("10.9.0.9/24")))
	Must(w, long.Do(spec.Add))
	Must(w, long.Do(spec.Check))
	w.Want("master by its other name", w.parent(long), "m9")
	Must(w, long.Do(spec.Del))
	w.Host.Delete("uplink")
	Must(w, p.Do(spec.Del))
	w.Detached(p)
}

// parent is the name of a pod's master on the host.
func (w *World) parent(p *Pod) string {
	w.Helper()
	l, err := w.HostConn().LinkAt(p.Link("eth0").Attrs().ParentIndex)
	Must(w, err)
	return l.Attrs().Name
}

// testForeign checks that an interface of another attachment is neither replaced nor deleted. The
// reference plugin's interface, which has no record and no mark, may be deleted.
func testForeign(w *World, c Child) {
	w.Master("m0")
	p := w.Pod("a", c.on("m0", Static("10.9.0.5/24"))).Add()
	other := *p
	other.Conf, other.Result = strings.Replace(p.Conf, `"name": "net"`, `"name": "other"`, 1), nil
	other.Refused(fmt.Sprintf(`failed to rename %s to "eth0": file exists`, c.kind()))
	Must(w, other.Do(spec.Del))
	Must(w, p.Do(spec.Check))
	w.LoseRecords()
	Must(w, p.Conn().LinkSetAlias(p.Link("eth0"), ""))
	Must(w, p.Do(spec.Del))
	w.Detached(p)
}

// testKilled kills an ADD before the link has its name and its mark.
func testKilled(w *World, c Child) {
	w.Master("m0")
	for _, verb := range []spec.Verb{spec.Del, spec.GC} {
		p := w.Pod(strings.ToLower(string(verb)), c.on("m0", Dual))
		Must(w, p.Do(spec.Add))
		temp := owner.Of("net", p.Call.ContainerID, "eth0").LinkName("veth", 0)
		link := p.Link("eth0")
		Must(w, p.Conn().LinkSetDown(link))
		Must(w, p.Conn().LinkSetAlias(link, ""))
		Must(w, p.Conn().LinkSetName(link, temp))
		w.collect(p, verb)
		if _, err := p.Conn().Link(temp); !nl.IsNotFound(err) {
			w.Errorf("%s leaves %s (%v)", verb, temp, err)
		}
		w.Forgotten()
	}
}

// collect calls DEL, or a GC that keeps only the pods in living.
func (w *World) collect(p *Pod, verb spec.Verb, living ...*Pod) {
	w.Helper()
	q := *p
	var list []string
	for _, l := range living {
		list = append(list, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, l.Call.ContainerID))
	}
	if verb == spec.GC {
		q.Conf += fmt.Sprintf(`, "cni.dev/valid-attachments": [%s]`, strings.Join(list, ","))
		q.Result, q.Call.NetNS, q.Call.ContainerID, q.Call.IfName = nil, "", "", ""
	}
	Must(w, q.Do(verb))
}

// testGC checks that GC removes the dead, even from a namespace that still exists, and keeps the
// living.
func testGC(w *World, c Child) {
	w.Master("m0")
	w.Master("m1") // a VLAN has one link on a master
	dead, alive := w.Pod("dead", c.on("m0", Dual)), w.Pod("alive", c.on("m1", Dual)).Add()
	Must(w, dead.Do(spec.Add))
	w.collect(dead, spec.GC, alive)
	if _, err := dead.Conn().Link("eth0"); !nl.IsNotFound(err) {
		w.Errorf("GC leaves the link (%v)", err)
	}
	Must(w, alive.Do(spec.Check))
	Must(w, alive.Do(spec.Del))
	w.Forgotten()
}

// testInside puts the master into the container.
func testInside(w *World, c Child) {
	p := w.Pod("a", c.on("m0", `"linkInContainer": true, `+Dual))
	node.Join(p.Space, "m0", w.Router, "m0")
	Must(w, p.Do(spec.Add))
	Must(w, p.Do(spec.Check))
	w.Want("master", fmt.Sprint(p.Link("eth0").Attrs().ParentIndex), fmt.Sprint(p.Link("m0").Attrs().Index))
	Must(w, p.Do(spec.Del))
	w.Detached(p)
	p.Link("m0") // still exists
}

// testCheck checks that CHECK reports each difference from what ADD made.
func testCheck(w *World, c Child) {
	w.Master("m0")
	w.Master("m1")
	p := w.Pod("a", c.on("m0", Dual)).Add()
	Must(w, p.Do(spec.Check))
	p.Call.NetNS = "/run/../run/netns/a"
	Must(w, p.Do(spec.Check))
	for text, conf := range map[string]string{
		"Interface eth0 is not on master m1": "m1", `failed to lookup master "m2"`: "m2",
	} {
		q := *p
		q.Conf = strings.Replace(p.Conf, `"m0"`, fmt.Sprintf("%q", conf), 1)
		w.Fails(q.Do(spec.Check), text)
	}
	conn, route := p.Conn(), &netlink.Route{Dst: must(netlink.ParseIPNet("0.0.0.0/0"))}
	for _, damage := range []struct {
		text string
		do   func() error
	}{
		{"Expected Route {0.0.0.0/0", func() error { return conn.RouteDel(route) }},
		{"Failed to match addr " + p.IP(0), func() error {
			return conn.AddrDel(p.Link("eth0"), &netlink.Addr{IPNet: must(netlink.ParseIPNet(p.IP(0) + "/24"))})
		}},
		{"is down", func() error { return conn.LinkSetDown(p.Link("eth0")) }},
		{"Container Interface name in prevResult: eth0 not found", func() error { return conn.LinkDel(p.Link("eth0")) }},
	} {
		Must(w, damage.do())
		w.Fails(p.Do(spec.Check), damage.text)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// testResult checks the result: one interface with its MTU, routes with all their attributes, and
// IPAM's DNS unless the configuration has its own.
func testResult(w *World, c Child) {
	Must(w, w.HostConn().LinkSetMTU(w.Master("m0"), 1400))
	ipam := `"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}],
		"routes": [{"dst": "10.8.0.0/16", "mtu": 1300, "advmss": 1200, "priority": 7}], "dns": {"nameservers": ["10.9.0.53"]}}`
	for name, conf := range map[string][2]string{
		"a": {``, "10.9.0.53 1400"}, "b": {`"mtu": 1350, `, "10.9.0.53 1350"},
		"c": {`"dns": {"nameservers": ["1.1.1.1"]}, `, "1.1.1.1 1400"},
	} {
		p, want := w.Pod(name, c.on("m0", conf[0]+ipam)), conf[1]
		Must(w, p.Do(spec.Add))
		i, link := p.Result.Interfaces[0], p.Link("eth0").Attrs()
		w.Want("result", fmt.Sprintf("%s %d", p.Result.DNS.Nameservers[0], i.MTU), want)
		w.Want("MTU", fmt.Sprint(link.MTU), fmt.Sprint(i.MTU))
		w.Want("interface", fmt.Sprint(len(p.Result.Interfaces), i.Name, i.Mac, i.Sandbox, *p.Result.IPs[0].Interface),
			fmt.Sprint(1, "eth0", link.HardwareAddr, p.Path, 0))
		routes, err := p.Conn().RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: must(netlink.ParseIPNet("10.8.0.0/16"))}, netlink.RT_FILTER_DST)
		if err != nil || len(routes) != 1 || routes[0].MTU != 1300 || routes[0].AdvMSS != 1200 || routes[0].Priority != 7 {
			w.Errorf("routes %v, %v", routes, err)
		}
		Must(w, p.Do(spec.Del))
	}
}

// testIPv6 checks that an address can be used at once, unless the kernel looks for duplicates.
func testIPv6(w *World, c Child) {
	w.Master("m0")
	for conf, slow := range map[string]bool{"": false, `"enabledad": true, `: true} {
		p := w.Pod(fmt.Sprintf("p%t", slow), c.on("m0", conf+Static("fd09::5/64 fd09::1", "10.9.0.5/24 10.9.0.1")))
		for _, key := range []string{"all", "default"} {
			p.Sysctl("net/ipv6/conf/"+key+"/accept_dad", "1")
		}
		limit := 400 * time.Millisecond // a second is usual
		if !slow {                      // no busy machine delays an ADD by 30 s
			p.Sysctl("net/ipv6/conf/default/dad_transmits", "30")
			limit = 10 * time.Second
		}
		start := time.Now()
		Must(w, p.Do(spec.Add))
		if took := time.Since(start); took > limit != slow {
			w.Errorf("%s ADD took %v", conf, took)
		}
		addrs, err := p.Conn().Addrs(p.Link("eth0").Attrs().Index)
		Must(w, err)
		for _, a := range addrs {
			if a.Prefix.Addr().String() == "fd09::5" && a.Flags&unix.IFA_F_TENTATIVE != 0 {
				w.Errorf("%sthe address is tentative", conf)
			}
		}
		Must(w, p.Do(spec.Check))
		Must(w, p.Do(spec.Del))
	}
}

// testStatus checks that STATUS fails without the master.
func testStatus(w *World, c Child) {
	p := w.Pod("a", c.on("m0", Dual))
	err := p.Do(spec.Status)
	w.Fails(err, `failed to lookup master "m0"`)
	w.Want("code", fmt.Sprint(spec.ErrorCode(err)), fmt.Sprint(spec.CodeNotAvailable))
	w.Master("m0")
	Must(w, p.Do(spec.Status))
	large := w.Pod("large", c.on("m0", `"mtu": 1600, `+Dual))
	if serr, aerr := large.Do(spec.Status), large.Do(spec.Add); (serr == nil) != (aerr == nil) {
		w.Errorf("an MTU above the master's: STATUS %v, ADD %v", serr, aerr)
	}
	Must(w, large.Do(spec.Del))
	p.Conf = strings.Replace(p.Conf, `"master": "m0"`, `"linkInContainer": true, "master": "m9"`, 1)
	Must(w, p.Do(spec.Status))
	if c.Default {
		p = w.Pod("b", c.Conf+Dual)
		Must(w, p.Do(spec.Status))
		w.Host.Delete("uplink")
		w.Fails(p.Do(spec.Status), "no default route interface found")
	}
}

// looker is another project's IPAM plugin that works through the link.
func looker() *plugin.Plugin {
	return &plugin.Plugin{Name: "looker", Kind: plugin.IPAM, Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
		conn, err := kernel.Of(r).Sandbox(r.NetNS)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Link(r.IfName); err != nil {
			return nil, err
		}
		return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.0.7/24")}}}, nil
	}}
}

// testIPAM checks that another project's IPAM plugin finds the link, as dhcp must. If the plugin
// has no address to give, no link is left.
func testIPAM(w *World, c Child) {
	w.Master("m0")
	p := w.Pod("a", c.on("m0", `"ipam": {"type": "looker"}`)).Add()
	w.Want("address", p.IP(0), "10.9.0.7")
	Must(w, p.Do(spec.Check))
	w.Master("m1")
	one := `"ipam": {"type": "host-local", "subnet": "10.9.0.0/29", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.2"}`
	full := w.Pod("full", c.on("m1", one)).Add()
	w.Master("m2")
	q := w.Pod("b", c.on("m2", one))
	q.Refused("no IP addresses available in range set")
	if _, err := q.Conn().Link("eth0"); !nl.IsNotFound(err) {
		w.Errorf("a failed ADD left eth0 (%v)", err)
	}
	Must(w, full.Do(spec.Check))
}
