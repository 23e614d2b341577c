// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/netns"
)

func hostLocal(pluginType, more, subnet string) string {
	return fmt.Sprintf(`{"type":%q,%s"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]]}}`, pluginType, more, subnet)
}

func TestKernelFeatures(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.healthy("kernel")
	for _, kind := range []string{"ipvlan", "vlan", "dummy", "vrf"} {
		b.network("extra", fmt.Sprintf(`{"type":%q}`, kind))
		if nettest.LinkKind(kind).Probe() == nil {
			b.healthy("kernel")
		} else {
			b.finds("kernel", "problem: which network extra needs: operation not supported")
		}
	}
	b.network("extra", `{"type":"macvlan"},{"type":"bandwidth"},{"type":"sbr"},{"type":"portmap"},{"type":"policy"}`)
	b.healthy("kernel")
}

// If the kernel refuses what network policies need, there is a finding for the networks that have them. Here it
// refuses because the thread has no CAP_NET_ADMIN; the thread may still make the namespace for the trial.
func TestKernelWithoutPolicies(t *testing.T) {
	features := slices.DeleteFunc(features(), func(f feature) bool { return !slices.Contains(f.plugins, "policy") })
	if len(features) != 1 {
		t.Fatalf("%d features of the plugin policy, not one", len(features))
	}
	var found []Finding
	var err error
	done := make(chan struct{})
	netns.GoOnThread(func() {
		defer close(done)
		if err = withoutNetAdmin(); err == nil {
			found, err = tryAll(features, map[string]string{"policy": "pods"}, "/proc")
		}
	})
	<-done
	const what = "the kernel has no nftables as network policies use it, which network pods needs: "
	if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].What, what) || !strings.HasSuffix(found[0].What, "operation not permitted") {
		t.Errorf("found %+v, %v; want: %s… operation not permitted", found, err, what)
	}
}

// withoutNetAdmin takes a capability from the calling thread, which must end afterwards.
func withoutNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&header, &data[0])
}

func TestOverlaps(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.healthy("overlap")
	b.network("twin", hostLocal("bridge", `"bridge":"br1",`, "10.88.0.128/25"))
	b.finds("overlap", "problem: networks pods (10.88.0.1-10.88.0.254) and twin (10.88.0.129-10.88.0.254) give out the same addresses")
	b.network("twin", `{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","subnet":"10.88.1.0/24"}}`)
	b.healthy("overlap")

	b.attach("pods", "c1") // the bridge's own route does not count
	b.healthy("overlap")
	uplink := b.veth("up0", "10.88.0.77/28")
	b.finds("overlap", "problem: the host's route to 10.88.0.64/28 by up0 overlaps 10.88.0.0/24 of network pods")
	b.must(netlink.AddrDel(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 88, 0, 77), Mask: net.CIDRMask(28, 32)}}))
	_, wide, err := net.ParseCIDR("10.0.0.0/8")
	b.must(err)
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: wide}))
	b.finds("overlap", "warning: route to 10.0.0.0/8 by up0 overlaps 10.88.0.0/24 of network pods",
		"warning: route to 10.0.0.0/8 by up0 overlaps 10.88.1.0/24 of network twin")
}

// On a node of Kubernetes with WireGuard there is an unreachable route to all pods, and during a
// migration also the bridge of the former network.
func TestOverlapsOfAKubernetesNode(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("ptp", "", "10.244.3.0/24"))
	b.attach("pods", "c1")
	_, cluster, err := net.ParseCIDR("10.244.0.0/16")
	b.must(err)
	b.must(netlink.RouteAdd(&netlink.Route{Dst: cluster, Type: unix.RTN_UNREACHABLE}))
	b.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}))
	bridge := b.link("cni0")
	b.must(netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 244, 3, 1), Mask: net.CIDRMask(24, 32)}}))
	b.must(netlink.LinkSetUp(bridge))
	b.healthy("overlap")
	b.must(netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 244, 3, 65), Mask: net.CIDRMask(28, 32)}}))
	b.finds("overlap", "problem: the host's route to 10.244.3.64/28 by cni0 overlaps 10.244.3.0/24 of network pods")
}

// The agent's tunnel has the first address of each of the node's subnets. The kernel makes a route to that of IPv6.
func TestOverlapWithTheTunnel(t *testing.T) {
	b := newBench(t)
	b.network("pods", `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.3.0/24"}],[{"subnet":"fd00:10:244:3::/64"}]]}}`)
	b.must(netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "patchbay-pods"}, VxlanId: 0x706f, Port: 4789}))
	tunnel := b.link("patchbay-pods")
	for _, text := range []string{"10.244.3.0/32", "fd00:10:244:3::/128"} {
		a, err := netlink.ParseAddr(text)
		b.must(err)
		b.must(netlink.AddrAdd(tunnel, a))
	}
	b.must(netlink.LinkSetUp(tunnel))
	b.healthy("overlap")
	_, other, err := net.ParseCIDR("fd00:10:244:3::7/128")
	b.must(err)
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: tunnel.Attrs().Index, Dst: other}))
	b.finds("overlap", "problem: the host's route to fd00:10:244:3::7/128 by patchbay-pods overlaps fd00:10:244:3::/64 of network pods")
}

func TestBridges(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.network("twin", hostLocal("bridge", `"bridge":"br0","mtu":1400,`, "10.89.0.0/24"))
	b.finds("bridges", "warning: networks pods and twin share bridge br0 with MTU 0 and 1400")
	b.network("twin", hostLocal("bridge", `"bridge":"br0","isGateway":true,`, "10.89.0.0/24"))
	b.finds("bridges", "problem: networks pods and twin share bridge br0 with the gateways 10.88.0.1 and 10.89.0.1")
	b.network("twin", hostLocal("bridge", `"bridge":"br0","internal":true,`, "10.89.0.0/24"))
	b.finds("bridges", "problem: only one of the networks pods and twin on bridge br0 is internal")
	b.network("twin", hostLocal("bridge", `"bridge":"br0","isGateway":true,"vlan":5,`, "10.89.0.0/24"))
	b.healthy("bridges")
	b.must(os.Remove(filepath.Join(b.conf, "twin.conflist")))
	b.attach("pods", "c1")
	b.healthy("bridges")
	br, err := netlink.LinkByName("br0")
	b.must(err)
	old, err := netlink.ParseAddr("10.99.0.1/24")
	b.must(err)
	b.must(netlink.AddrAdd(br, old))
	b.finds("bridges", "warning: bridge br0 has the address 10.99.0.1/24, which is in none of its networks (10.88.0.0/24)")
	b.must(netlink.LinkDel(br))
	b.veth("br0", "")
	b.finds("bridges", "problem: br0, the bridge of network pods, is a veth")
	b.finds("status", `problem: network pods takes no containers now`)
}

func TestMTUs(t *testing.T) {
	b := newBench(t)
	uplink := b.veth("up0", "192.0.2.2/24")
	b.must(netlink.LinkSetMTU(uplink, 1400))
	b.network("pods", hostLocal("ptp", `"mtu":1500,`, "10.88.0.0/24"))
	b.healthy("mtu") // no default route, so no limit
	b.defaultRoute(uplink, "192.0.2.1", 0)
	b.finds("mtu", "warning: network pods has MTU 1500, but the uplink, up0, only 1400")
	b.network("pods", pods)
	b.healthy("mtu")
	b.attach("pods", "c1")
	b.finds("mtu", "warning: bridge br0 of network pods has MTU 1500, but the uplink, up0, only 1400")
	b.must(netlink.LinkSetMTU(uplink, 1500))
	b.healthy("mtu")
	br, err := netlink.LinkByName("br0")
	b.must(err)
	b.must(netlink.LinkSetMTU(br, 1300))
	b.finds("mtu", "warning: and its bridge br0 only 1300")
}

func TestPools(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", "", "10.88.0.0/28")) // 13 without the gateway
	b.fill("pods", 11)
	b.healthy("pools")
	b.fill("pods", 12)
	b.finds("pools", "warning: 12 of 13 addresses of network pods (10.88.0.1-10.88.0.14) are taken")
	b.fill("pods", 13)
	b.finds("pools", "problem: no container can be attached")
	b.network("pods", hostLocal("bridge", "", "fd00::/64"))
	b.healthy("pools")
}

// fill reserves n addresses from 10.88.0.2.
func (b *bench) fill(network string, n int) {
	b.Helper()
	dir := filepath.Join(b.paths.CNI, "networks", network)
	b.must(os.MkdirAll(dir, 0o755))
	for i := range n {
		b.must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("10.88.0.%d", i+2)), fmt.Appendf(nil, "c%d\r\neth0", i), 0o600))
	}
}

func TestSize(t *testing.T) {
	for _, tc := range []struct {
		subnet, start, end, gateway string
		want                        int
	}{
		{"10.0.0.0/24", "", "", "", 253},
		{"10.0.0.0/24", "10.0.0.10", "10.0.0.19", "", 10},
		{"10.0.0.0/24", "10.0.0.10", "10.0.0.19", "10.0.0.12", 9},
		{"10.0.0.0/8", "", "", "", 1<<24 - 3},
		{"fd00::/120", "", "", "", 254},
	} {
		r, err := ipam.ParseRange(tc.subnet, tc.start, tc.end, tc.gateway)
		if err != nil {
			t.Fatal(err)
		}
		set := ipam.RangeSet{r}
		if err := set.Canonicalize(); err != nil {
			t.Fatal(err)
		}
		if got := size(set); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}

func TestLeftovers(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	path := b.attach("pods", "c1")
	b.healthy("leftovers")
	b.must(netns.Delete(path))
	b.finds("leftovers", "warning: not removed yet: 1 dead attachment with 1 address: pods c1/eth0")

	// An address file is the only trace of its attachment, so gc is unsure.
	b = newBench(t)
	b.fill("pods", 5)
	b.finds("leftovers", "warning: 5 attachments may be dead: pods c0/eth0: its namespace is unknown")
}

func TestConfigurations(t *testing.T) {
	b := newBench(t)
	b.finds("config", "warning: no network is configured")
	show := "patchbay network show patchbay > " + b.conf + "/10-patchbay.conflist"
	if fix := b.check("config")[0].Fix; fix != show {
		t.Errorf("advice: %s", fix)
	}
	b.must(os.Remove(b.conf))
	if fix := b.check("config")[0].Fix; fix != "mkdir -p "+b.conf+" && "+show {
		t.Errorf("advice without the directory: %s", fix)
	}
	b.must(os.Mkdir(b.conf, 0o700))
	b.network("pods", pods)
	b.healthy("config")
	b.must(os.WriteFile(filepath.Join(b.conf, "broken.conflist"), []byte("{"), 0o600))
	b.network("ranges", `{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.1/24"}]]}}`)
	b.network("missing", `{"type":"bridge","ipam":{"type":"calico-ipam"}},{"type":"nobody"}`)
	again := filepath.Join(b.conf, "zz-again.conflist")
	text, err := os.ReadFile(filepath.Join(b.conf, "pods.conflist"))
	b.must(err)
	b.must(os.WriteFile(again, text, 0o600))
	b.finds("config", "problem: broken.conflist", `problem: "calico-ipam"`, `problem: "nobody"`, "problem: bridge.ipam: ",
		"warning: network pods is in")
}

// The check warns about a configuration that an ADD accepts. Somebody may want this configuration, so the advice
// says so.
func TestAdviceOfAWarning(t *testing.T) {
	b := newBench(t)
	b.network("pods", `{"type":"bridge","isGateway":true}`)
	b.finds("config", "warning: bridge: isGateway and ipMasq have no effect without ipam")
	file := filepath.Join(b.conf, "pods.conflist")
	if fix := b.check("config")[0].Fix; fix != "correct "+file+", unless it is meant so" {
		t.Errorf("advice: %s", fix)
	}
}

func TestBinaries(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.healthy("plugins") // no program is installed, and all plugins are built in
	b.must(os.Symlink("/proc/self/exe", filepath.Join(b.bin, "loopback")))
	b.finds("plugins", "warning: networks name bridge firewall, which "+b.bin+" lacks: patchbay uses its built-in ones, other runtimes find none")
	b.must(os.Symlink("/proc/self/exe", filepath.Join(b.bin, "bridge")))
	b.must(os.Symlink("/proc/self/exe", filepath.Join(b.bin, "firewall")))
	b.healthy("plugins")
	b.must(os.Remove(filepath.Join(b.bin, "bridge")))
	b.must(os.WriteFile(filepath.Join(b.bin, "ptp"), []byte("#!/bin/sh\n"), 0o755))
	b.must(os.WriteFile(filepath.Join(b.bin, "bridge"), []byte("\x7fELF path\tgithub.com/patchbay-net/patchbay/cmd/patchbay\n"), 0o755))
	b.must(os.WriteFile(filepath.Join(b.bin, "portmap"), nil, 0o644))
	b.must(os.Symlink("nowhere", filepath.Join(b.bin, "tuning")))
	b.finds("plugins", "warning: bridge in "+b.bin+" are of another build", "warning: ptp in", "problem: portmap tuning in "+b.bin+" cannot be executed")
}

func TestDHCPKeepers(t *testing.T) {
	b := newBench(t)
	b.network("lan", `{"type":"macvlan","ipam":{"type":"dhcp"}}`)
	other := filepath.Join(b.conf, "other.sock")
	b.network("lan2", fmt.Sprintf(`{"type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":%q}}`, other))
	usual := filepath.Join(b.paths.RunCNI, "dhcp.sock")
	b.finds("dhcp", "problem: no keeper of leases answers at "+usual+": connect: no such file", "problem: "+other)
	b.must(os.MkdirAll(b.paths.RunCNI, 0o700))
	for _, path := range []string{usual, other} {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
		b.must(err)
		defer l.Close() //nolint:errcheck // a test
	}
	b.healthy("dhcp")
}

// Objects in each container were removed by hand. Doctor reports them for each container.
func TestAttachments(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	ns := map[string]string{}
	for _, id := range []string{"link", "address", "route", "subnet", "well"} {
		ns[id] = b.attach("pods", id)
	}
	b.healthy("attachments")
	inside := func(id string, do func(*netlink.Handle, netlink.Link) error) {
		t.Helper()
		n, err := netns.Open(ns[id])
		b.must(err)
		b.must(n.Do(func() error {
			h, err := netlink.NewHandle()
			if err != nil {
				return err
			}
			defer h.Close()
			eth0, err := h.LinkByName("eth0")
			if err != nil {
				return err
			}
			return do(h, eth0)
		}))
		b.must(n.Close())
	}
	inside("address", func(h *netlink.Handle, l netlink.Link) error {
		list, err := h.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		return h.AddrDel(l, &list[0])
	})
	inside("route", func(h *netlink.Handle, l netlink.Link) error {
		_, all, err := net.ParseCIDR("0.0.0.0/0")
		if err != nil {
			return err
		}
		return h.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: all})
	})
	inside("subnet", func(h *netlink.Handle, l netlink.Link) error {
		return h.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4(10, 88, 0, 0), Mask: net.CIDRMask(24, 32)}})
	})
	inside("link", func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) })
	b.finds("attachments", "problem: pods/address: eth0 has lost its address 10.88.0.3/24",
		"problem: pods/link: the host's link", "problem: pods/route: the route to 0.0.0.0/0 is missing", "problem: pods/subnet: the route to 10.88.0.0/24 is missing")
}
