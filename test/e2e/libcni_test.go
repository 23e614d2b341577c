// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// specVersions are all published versions of the specification.
var specVersions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// TestLibcni calls every verb of every specification version through upstream libcni, with the
// usual chain on a bridge and on ptp. It sends what containerd sends, and checks the traffic.
func TestLibcni(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		serve(t, outside, 80)
		eachNetwork(t, []string{"bridge", "ptp"}, everyVerb)
	})
}

// eachNetwork runs a test with the usual chain in every version, and for our plugins also
// with the whole chain as one plugin.
func eachNetwork(t *testing.T, mains []string, test func(t *testing.T, n *network)) {
	for _, main := range mains {
		for _, v := range specVersions {
			t.Run(main+"/"+v, func(t *testing.T) { test(t, newNetwork(t, main, v)) })
			if !ours() || !atLeast(v, "0.3.0") || main == "loopback" {
				continue
			}
			t.Run("patchbay/"+main+"/"+v, func(t *testing.T) {
				n := newNetwork(t, main, v)
				n.form = "patchbay"
				n.parse(t)
				test(t, n)
			})
		}
	}
}

// everyVerb calls every verb for two pods on one network, from ADD to DEL.
func everyVerb(t *testing.T, n *network) {
	c := call(t, plugins())
	warm(c, n)
	before := leak.Must(t)
	c.versions(n)
	c.status(n)
	one, two := newPod(t, "one", 18080), newPod(t, "two", 18081)
	c.add(n, one)
	c.add(n, two)
	for _, p := range []*pod{one, two} {
		serve(t, p.id, 80)
		c.check(n, p)
	}
	proveTraffic(t, n, one, two)
	proveLimits(t, n, one)
	noSecrets(t)
	c.gc(n, two)
	if atLeast(n.version, "1.1.0") { // only since 1.1.0 does GC name the valid attachments
		c.check(n, two)
		reaches(t, "", two.addr(false), 80, noAddr)
	}
	c.del(n, one)
	c.del(n, one) // again, as kubelet does
	if ours() {   // if the namespace is deleted first, the reference leaves something behind
		deleteNamespace(t, two.id)
	}
	c.del(n, two)
	c.gc(n)
	c.status(n)
	leak.NoLeaks(t, before)
}

// warm attaches and detaches once if the plugins are not ours. So what the reference never
// removes (chains, tables) exists before anything is counted. For our plugins, leak.Standing
// knows what may stay.
func warm(c *caller, n *network) {
	if ours() {
		return
	}
	p := newPod(c.T, "warm", 18999)
	c.add(n, p)
	c.del(n, p)
	deleteNamespace(c.T, p.id)
}

// proveTraffic sends traffic across two attached pods in every direction.
func proveTraffic(t *testing.T, n *network, one, two *pod) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		node, world := node4, outside4
		if v6 {
			node, world = node6, outside6
		}
		reaches(t, one.id, two.addr(v6), 80, one.addr(v6)) // pod to pod, unmasked
		reaches(t, two.id, one.addr(v6), 80, two.addr(v6))
		reaches(t, "", one.addr(v6), 80, noAddr) // node to pod
		reaches(t, one.id, world, 80, node)      // to the outside, masqueraded
		if !n.has("portmap") {
			continue
		}
		reaches(t, outside, node, one.hostPort, world) // inbound, the client's address kept
		reaches(t, outside, node, two.hostPort, world)
		reaches(t, "", node, one.hostPort, noAddr)     // from the node itself
		reaches(t, two.id, node, one.hostPort, noAddr) // from a neighbour
		reaches(t, one.id, node, one.hostPort, noAddr) // hairpin
		refused(t, outside, node, 18082)
	}
	if n.has("portmap") {
		reaches(t, "", loopback4, one.hostPort, noAddr)
	}
}

// proveLimits checks the settings of bandwidth and tuning on a pod.
func proveLimits(t *testing.T, n *network, p *pod) {
	t.Helper()
	if n.has("tuning") {
		if got := run(t, "ip", "netns", "exec", p.id, "cat", "/proc/sys/net/core/somaxconn"); got != "500" {
			t.Errorf("tuning: somaxconn is %s, want 500", got)
		}
	}
	if n.has("bandwidth") {
		qdiscs := run(t, "tc", "qdisc", "show")
		for _, want := range []string{"rate 100Mbit", "rate 80Mbit", "qdisc ingress"} {
			if !strings.Contains(qdiscs, want) {
				t.Errorf("bandwidth: no %q in:\n%s", want, qdiscs)
			}
		}
	}
}

// noSecrets looks for the pod's annotations in every state file except libcni's own cache.
// Plugins must not copy what a runtime passes to them.
func noSecrets(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/run", "/var/lib/cni/networks"} {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, "/run/netns") {
				return nil
			}
			if raw, _ := os.ReadFile(path); strings.Contains(string(raw), "secretsecret") {
				t.Errorf("%s holds the pod's annotations", path)
			}
			return nil
		})
	}
}

// TestGCAlone removes all that a runtime knows about a pod, and its namespace, as after a crash
// or an administrator's rm. The plugins' GC alone removes what is left of the pod. It leaves the
// pod's neighbour alone.
func TestGCAlone(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		for _, main := range []string{"bridge", "ptp"} {
			for _, form := range []string{"chain", "patchbay"} {
				t.Run(main+"/"+form, func(t *testing.T) {
					c, n := call(t, plugins()), newNetwork(t, main, "1.1.0")
					n.form = form
					n.parse(t)
					stays := attach(t, c, n, "stays", 18080)
					before := leak.Must(t)
					lost := attach(t, c, n, "lost", 18081)
					deleteNamespace(t, lost.id)
					run(t, "rm", cacheFile(n, lost))
					c.gc(n, stays)
					leak.NoLeaks(t, before)
					refused(t, outside, node4, lost.hostPort)
					c.check(n, stays)
					reaches(t, outside, node4, stays.hostPort, outside4)
					c.del(n, stays)
				})
			}
		}
	})
}

// TestLoopback drives the loopback plugin as containerd does, with a list of version 0.3.1,
// and in every other version.
func TestLoopback(t *testing.T) {
	onNode(t, func(t *testing.T) {
		for _, v := range specVersions {
			t.Run(v, func(t *testing.T) {
				c, n := call(t, plugins()), newNetwork(t, "loopback", v)
				before := leak.Must(t)
				p := newPod(t, "one", 0)
				p.ifname = "lo"
				c.versions(n)
				c.add(n, p)
				c.check(n, p)
				serve(t, p.id, 80)
				reaches(t, p.id, loopback4, 80, loopback4)
				c.del(n, p)
				c.del(n, p)
				leak.NoLeaks(t, before)
			})
		}
	})
}

// TestSameResult attaches the same pod with the same configuration, once with the reference and
// once with the directory under test. It compares shape, order and indices of the results.
func TestSameResult(t *testing.T) {
	onNode(t, func(t *testing.T) {
		want := map[string]any{}
		eachNetwork(t, []string{"bridge", "ptp", "loopback"}, func(t *testing.T, n *network) {
			of := n.main + n.version
			if n.form == "chain" { // the reference has no other
				want[of] = result(t, reference(), n)
			}
			if d := cmp.Diff(want[of], result(t, plugins(), n)); d != "" {
				t.Errorf("result (-reference +ours):\n%s", d)
			}
		})
	})
}

// result attaches a pod to a node without reservations and returns the plugin's output.
func result(t *testing.T, dir string, n *network) any {
	t.Helper()
	c, p := call(t, dir), newPod(t, "one", 18080)
	if n.main == "loopback" {
		p.ifname = "lo"
	}
	printed := comparable(t, c.add(n, p))
	c.del(n, p)
	deleteNamespace(t, p.id)
	noAddresses(t)
	return printed
}

var (
	vethName = regexp.MustCompile(`^veth[0-9a-f]{8}$`)
	ifbName  = regexp.MustCompile(`^bwp[0-9a-f]{12}$`)
)

// comparable returns a result as generic JSON, with equal values in place of random ones.
func comparable(t *testing.T, r types.Result) any {
	t.Helper()
	return comparableResult(generic(t, r).(object))
}

// comparableResult makes MAC addresses and the names of host interfaces equal. It leaves out two
// things that we report and the reference should report. One is the MTU of interfaces. The other
// is the family of loopback's addresses before 1.0.0; without it, the reference's results of
// 0.1.0 and 0.2.0 have no addresses.
func comparableResult(v object) object {
	for family, address := range map[string]string{"ip4": "127.0.0.1/8", "ip6": "::1/128"} {
		if ip, ok := v[family].(object); ok && ip["ip"] == address {
			delete(v, family)
		}
	}
	ips, _ := v["ips"].([]any)
	for _, ip := range ips {
		if ip := ip.(object); ip["address"] == "127.0.0.1/8" || ip["address"] == "::1/128" {
			delete(ip, "version")
		}
	}
	interfaces, _ := v["interfaces"].([]any)
	for _, i := range interfaces {
		i := i.(object)
		delete(i, "mtu")
		if mac, ok := i["mac"].(string); ok && len(mac) == 17 && mac != "00:00:00:00:00:00" {
			i["mac"] = "MAC"
		}
		i["name"] = ifbName.ReplaceAllString(vethName.ReplaceAllString(i["name"].(string), "VETH"), "IFB")
	}
	return v
}

// TestRateLimit transfers more than the burst through an attachment with a limit, in both
// directions, and measures the time.
func TestRateLimit(t *testing.T) {
	onNode(t, func(t *testing.T) {
		c, n := call(t, plugins()), newNetwork(t, "bridge", "1.0.0")
		n.chained = []object{{"type": "bandwidth",
			"ingressRate": 16_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000}}
		n.parse(t)
		p := newPod(t, "one", 0)
		c.add(n, p)
		serve(t, p.id, 80)
		serve(t, "", 80)
		gateway := p.result.IPs[0].Gateway.String()
		const size = 2 << 20 // at 16 Mbit/s this takes about a second
		for direction, load := range map[string]func(int){
			"egress":  func(int) { fetch(t, "", p.addr(false), 80, size) },
			"ingress": func(int) { fetch(t, p.id, addrOf(t, gateway), 80, size) },
		} {
			took := nettest.Quickest(load)
			if took < 700*time.Millisecond || took > 4*time.Second {
				t.Errorf("%s: 2 MiB at 16 Mbit/s took %v\n%s", direction, took, run(t, "tc", "-s", "qdisc", "show"))
			}
		}
		c.check(n, p)
		c.del(n, p)
	})
}

// TestFirstPacket checks that a pod answers over IPv6 as soon as ADD returned. Duplicate address
// detection takes half a minute here, so ADD cannot have waited for it. The bridge exists before
// this ADD.
func TestFirstPacket(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				c, n := call(t, plugins()), newNetwork(t, main, "1.0.0")
				first := attach(t, c, n, "first", 18080)
				eventually(t, "the network is up", func() error {
					_, err := who("", first.addr(true), 80)
					return err
				})
				two := newPod(t, "two", 0)
				detectSlowly(t, "", two.id)
				c.add(n, two)
				serve(t, two.id, 80)
				start := time.Now()
				reaches(t, first.id, two.addr(true), 80, first.addr(true))
				reaches(t, two.id, first.addr(true), 80, two.addr(true))
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("the first packets over IPv6 took %v", took)
				}
				c.del(n, first)
				c.del(n, two)
			})
		}
	})
}

// detectSlowly makes new links look for duplicates for half a minute.
func detectSlowly(t *testing.T, namespaces ...string) {
	t.Helper()
	for _, name := range namespaces {
		err := within(name, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/default/dad_transmits", []byte("30"), 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailedAdd lets the last plugin of the chain refuse. After a failed ADD the runtime calls
// DEL, which leaves a clean node.
func TestFailedAdd(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				c, n := call(t, plugins()), newNetwork(t, main, "1.0.0")
				warm(c, n)
				n.chained = append(n.chained, object{"type": "tuning", "sysctl": object{"net.no.such.key": "1"}})
				n.parse(t)
				before := leak.Must(t)
				p := newPod(t, "one", 18080)
				if _, err := c.cni.AddNetworkList(context.Background(), n.list, p.runtimeConf()); err == nil {
					t.Fatal("ADD with an unknown sysctl succeeded")
				}
				c.del(n, p)
				leak.NoLeaks(t, before)
			})
		}
	})
}
