// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

const tunedNet = `{"cniVersion":"1.1.0","name":"tuned","plugins":[{"type":"bridge","bridge":"br-t1","isGateway":true,` + dual + `},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"777","net.ipv4.conf.IFNAME.arp_notify":"1"}}]}`

func TestPostKeepsSysctls(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, tunedNet)
		n.old = old
		c := n.mustStart(run{network: n.network("tuned")})
		if old { // before Docker 28, settings of the namespace are lost (docs/docker.md)
			c.stop(true)
			return
		}
		for key, want := range map[string]string{"net/core/somaxconn": "777", "net/ipv4/conf/eth0/arp_notify": "1"} {
			if got, err := conn(t, c.key).Sysctl(key); got != want || err != nil {
				t.Errorf("%s is %q (%v), want %s", key, got, err, want)
			}
		}
		c.stop(true)
	})
}

// A container is on two networks. Each network runs its part post with the name of its own interface.
func TestSecondNetwork(t *testing.T) {
	second := strings.NewReplacer("tuned", "other", "br-t1", "br-t2", "10.91", "10.92", "fd91", "fd92").Replace(tunedNet)
	n := newNode(t, tunedNet, second)
	a := n.mustStart(run{network: n.network("tuned")})
	b := n.mustStart(run{network: n.network("other"), key: a.key, notGW: true, options: map[string]any{cnm.OptionIfName: "eth7"}})
	if got, err := conn(t, a.key).Sysctl("net/ipv4/conf/eth7/arp_notify"); got != "1" || err != nil {
		t.Errorf("arp_notify of the second is %q %v", got, err)
	}
	must(t, b.leave())
	b.unplace()
	must(t, b.delete())
	a.stop(true)
}

const brokenNet = `{"cniVersion":"1.1.0","name":"broken","plugins":[{"type":"bridge","bridge":"br-t3",` + dual + `},
	{"type":"tuning","sysctl":{"net.core.nosuchthing":"1"}}]}`

// The part post of a container fails. The container must not run with half a network.
func TestPostFailureEndsTheStart(t *testing.T) {
	n := newNode(t, brokenNet)
	network, key := n.network("broken"), n.sandbox()
	init := startInit(t, key)
	c := n.mustStart(run{network: network, key: key, notGW: true})
	select {
	case err := <-init:
		t.Logf("init ended: %v", err)
	case <-time.After(time.Minute):
		t.Error("the container's init still waits")
	}
	c.stop(true)
}

// startInit starts a process like runc's init in a sandbox.
func startInit(t *testing.T, key string) (ended chan error) {
	t.Helper()
	ended, _ = startInitPid(t, key)
	return ended
}

// waitForName waits until exec has set a process's name.
func waitForName(t *testing.T, pid int, want string) {
	t.Helper()
	for range 6000 {
		name, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
		if strings.TrimSpace(string(name)) == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no process %s", want)
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// A running container whose part post fails is not killed. Its link is set down.
func TestPostFailureTakesTheLinkDown(t *testing.T) {
	n := newNode(t, brokenNet)
	c := n.mustStart(run{network: n.network("broken"), notGW: true})
	link, err := conn(t, c.key).LinkByName(c.name)
	must(t, err)
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		t.Error("the interface is up")
	}
	c.stop(true)
}

const routedNet = `{"cniVersion":"1.1.0","name":"routed","plugins":[{"type":"bridge","bridge":"br-t4","ipam":{"type":"host-local",
	"ranges":[[{"subnet":"10.94.0.0/24"}],[{"subnet":"10.95.0.0/24"}],[{"subnet":"fd94::/64"}]],
	"routes":[{"dst":"0.0.0.0/0","priority":77},{"dst":"::/0"},{"dst":"10.200.0.0/16","gw":"10.94.0.9","mtu":1300},{"dst":"10.201.0.0/16","table":100},{"dst":"10.202.0.0/16","gw":"10.95.0.9"}]}}]}`

// The driver adds in the sandbox what Docker's messages cannot express.
func TestExactRoutes(t *testing.T) {
	n := newNode(t, routedNet)
	c := n.mustStart(run{network: n.network("routed")})
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	in := conn(t, c.key)
	link, err := in.LinkByName(c.name)
	must(t, err)
	got, err := snapshot(in, link)
	must(t, err)
	if len(got.Addrs) != 3 {
		t.Errorf("addresses: %v", got.Addrs)
	}
	for _, want := range e.Kernel.Routes {
		if !contains(got.Routes, &want) {
			t.Errorf("missing %s\nhave %s", asJSON(want), asJSON(got.Routes))
		}
	}
	if len(got.Routes) != len(e.Kernel.Routes) {
		t.Errorf("%d routes of %d\n%s\n%s", len(got.Routes), len(e.Kernel.Routes), asJSON(got.Routes), asJSON(e.Kernel.Routes))
	}
	c.stop(true)
}

func TestContainerID(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, text := range []string{
		"0::/system.slice/docker-" + id + ".scope\n", "12:net_cls:/docker/" + id + "\n0::/docker/" + id + "\n",
	} {
		if got := containerIDs(text); len(got) == 0 || got[0] != id {
			t.Errorf("%q: %q", text, got)
		}
	}
	inner := strings.Repeat("1b", 32) // a container may name its own cgroups after another container
	if got := containerIDs("0::/docker/" + id + "/docker/" + inner + "\n"); len(got) != 2 || got[0] != id {
		t.Errorf("%q", got)
	}
	for _, text := range []string{"", "0::/\n", "0::/docker-" + id + "ff.scope"} {
		if got := containerIDs(text); len(got) > 0 {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// What a router has advertised while the chain ran has a lifetime. The kernel learns it again in the sandbox.
func TestAdvertised(t *testing.T) {
	n := newNode(t, routedNet)
	c := conn(t, n.sandbox())
	must(t, c.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
	link, err := c.LinkByName("eth0")
	must(t, err)
	must(t, c.LinkSetUp(link))
	add := func(address string, lifetime int) {
		t.Helper()
		a, err := netlink.ParseAddr(address)
		must(t, err)
		a.ValidLft, a.PreferedLft = lifetime, lifetime
		must(t, c.AddrAdd(link, a))
	}
	add("fd94::5/64", 0)
	add("2001:db8::5/64", 1800)
	gw := netip.MustParseAddr("fd94::1")
	for _, protocol := range []int{unix.RTPROT_RA, unix.RTPROT_STATIC} {
		r := state.Route{Dst: netip.PrefixFrom(netip.IPv6Unspecified(), 0), GW: gw, Table: unix.RT_TABLE_MAIN, Metric: 100 + protocol, Protocol: protocol}
		must(t, c.RouteAdd(toKernel(&r, link.Attrs().Index)))
	}
	got, err := snapshot(c, link)
	must(t, err)
	if len(got.Addrs) != 1 || got.Addrs[0].String() != "fd94::5/64" {
		t.Errorf("addresses: %v", got.Addrs)
	}
	for _, r := range got.Routes {
		if r.Protocol == unix.RTPROT_RA || r.Dst.Bits() == 0 && r.Metric != 100+unix.RTPROT_STATIC {
			t.Errorf("route %+v", r)
		}
	}
}
