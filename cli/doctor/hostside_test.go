// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// link finds a link of the host.
func (b *bench) link(name string) netlink.Link {
	b.Helper()
	l, err := netlink.LinkByName(name)
	b.must(err)
	return l
}

// hostEnd is the host's end of an attachment's pair.
func (b *bench) hostEnd(network, id string) netlink.Link {
	b.Helper()
	cached, err := b.runtime().Attachments("")
	b.must(err)
	for _, c := range cached {
		for _, i := range c.Result.Interfaces {
			if c.Network == network && c.ContainerID == id && i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
				return b.link(i.Name)
			}
		}
	}
	b.Fatalf("no pair of %s/%s", network, id)
	return nil
}

// detects calls do, and fails unless CHECK and doctor report the text. Then it calls undo, and
// fails unless they report nothing.
func (b *bench) detects(network, id, text string, do, undo func()) {
	b.Helper()
	b.healthy("attachments")
	do()
	list, err := b.runtime().Load(network)
	b.must(err)
	if err := b.runtime().Check(context.Background(), list, b.of(network, id)); err == nil || !strings.Contains(err.Error(), text) {
		b.Errorf("CHECK says %v, want %s", err, text)
	}
	b.finds("attachments", "problem: "+text)
	undo()
	b.healthy("attachments")
}

func (b *bench) of(network, id string) chain.Attachment {
	return chain.Attachment{ContainerID: id, NetNS: filepath.Join(b.paths.NetNS, id), IfName: "eth0"}
}

// An object that an attachment needs on the host is missing.
func TestHostSideOfABridge(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	b.attach("pods", "c1")
	br, end := b.link("br0"), b.hostEnd("pods", "c1")
	gateway, err := netlink.ParseAddr("10.88.0.1/24")
	b.must(err)
	up := func(l netlink.Link) func() { return func() { b.must(netlink.LinkSetUp(l)) } }
	down := func(l netlink.Link) func() { return func() { b.must(netlink.LinkSetDown(l)) } }
	b.detects("pods", "c1", "10.88.0.1/24", func() { b.must(netlink.AddrDel(br, gateway)) }, func() { b.must(netlink.AddrAdd(br, gateway)) })
	b.detects("pods", "c1", "Interface br0 is down", down(br), up(br))
	b.detects("pods", "c1", "ARP is off on br0", func() { b.must(netlink.LinkSetARPOff(br)) }, func() { b.must(netlink.LinkSetARPOn(br)) })
	b.detects("pods", "c1", "Interface "+end.Attrs().Name+" is down", down(end), up(end))
	b.detects("pods", "c1", "is not a port of it", func() { b.must(netlink.LinkSetNoMaster(end)) }, func() { b.must(netlink.LinkSetMaster(end, br)) })
	b.detects("pods", "c1", "net/ipv4/conf/br0/forwarding=1", func() { b.sysctl("net/ipv4/conf/br0/forwarding", "0") }, func() { b.sysctl("net/ipv4/conf/br0/forwarding", "1") })
}

// If several containers lack the same object, there is one finding.
func TestHostSideOfTwo(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	b.attach("pods", "c1")
	b.attach("pods", "c2")
	b.healthy("attachments")
	b.must(netlink.LinkSetDown(b.link("br0")))
	b.finds("attachments", "problem: pods/c1, pods/c2: Interface br0 is down")
}

// The route that came with the gateway's address is gone. The address still exists, but neither it
// nor another ADD restores the route.
func TestHostSideOfARoute(t *testing.T) {
	for _, c := range []struct{ subnet, gateway, other string }{
		{"10.88.0.0/24", "10.88.0.1", "192.0.2.2/24"}, {"fd88::/64", "fd88::1", "2001:db8::2/64"},
	} {
		for _, way := range []bool{false, true} { // into the host and out of it
			t.Run(fmt.Sprint(c.subnet, way), func(t *testing.T) { routeLost(newBench(t), c.subnet, c.gateway, c.other, way) })
		}
	}
}

func routeLost(b *bench, subnet, gateway, other string, way bool) {
	b.Helper()
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, subnet))
	b.attach("pods", "c1")
	if up := b.veth("up0", ""); way {
		addr, err := netlink.ParseAddr(other)
		b.must(err)
		addr.Flags = unix.IFA_F_NODAD
		b.must(netlink.AddrAdd(up, addr))
		_, all, err := net.ParseCIDR(map[bool]string{true: "0.0.0.0/0", false: "::/0"}[addr.IP.To4() != nil])
		b.must(err)
		b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: all}))
	}
	_, dst, err := net.ParseCIDR(subnet)
	b.must(err)
	route := &netlink.Route{LinkIndex: b.link("br0").Attrs().Index, Dst: dst}
	if dst.IP.To4() != nil {
		route.Scope = netlink.SCOPE_LINK
	}
	b.detects("pods", "c1", "the host has no route to "+strings.TrimSuffix(gateway, "1")+"2 by br0, which no ADD restores (ip route add "+subnet+" dev br0 src "+gateway+")",
		func() { b.must(netlink.RouteDel(route)) },
		func() { b.run("ip", "route", "add", subnet, "dev", "br0", "src", gateway) })
}

func TestHostSideOfAPair(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("ptp", "", "10.88.0.0/24"))
	b.attach("pods", "c1")
	end := b.hostEnd("pods", "c1")
	route := &netlink.Route{LinkIndex: end.Attrs().Index, Scope: netlink.SCOPE_HOST, Dst: netlink.NewIPNet(net.IPv4(10, 88, 0, 2))}
	b.detects("pods", "c1", "10.88.0.2", func() { b.must(netlink.RouteDel(route)) }, func() { b.must(netlink.RouteAdd(route)) })
	b.detects("pods", "c1", "ARP is off on "+end.Attrs().Name, func() { b.must(netlink.LinkSetARPOff(end)) }, func() { b.must(netlink.LinkSetARPOn(end)) })
	key := "net/ipv4/conf/" + end.Attrs().Name + "/forwarding"
	b.detects("pods", "c1", key, func() { b.sysctl(key, "0") }, func() { b.sysctl(key, "1") })
}

// Packets from a container pass the device of bandwidth.
func TestHostSideOfAnIfb(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("ptp", "", "10.88.0.0/24")+`,{"type":"bandwidth","egressRate":8000000,"egressBurst":8000000}`)
	b.attach("pods", "c1")
	links, err := nl.Retry(netlink.LinkList)
	b.must(err)
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Type() == "ifb" })
	if i < 0 {
		t.Fatal("no ifb")
	}
	b.detects("pods", "c1", "is down, and drops what the container sends", func() { b.must(netlink.LinkSetDown(links[i])) }, func() { b.must(netlink.LinkSetUp(links[i])) })
}

func TestHostSideOfAMacvlan(t *testing.T) {
	b := newBench(t)
	up0 := b.veth("up0", "")
	b.network("lan", hostLocal("macvlan", `"master":"up0",`, "10.88.0.0/24"))
	b.attach("lan", "c1")
	b.detects("lan", "c1", "master up0 of eth0 is down", func() { b.must(netlink.LinkSetDown(up0)) }, func() { b.must(netlink.LinkSetUp(up0)) })
}

// The check covers two more lists: one of an old version, and one that sets disableCheck because
// of other vendors' plugins.
func TestHostSideOfOldLists(t *testing.T) {
	for id, head := range map[string]string{"c1": `"cniVersion":"0.3.1"`, "c2": `"cniVersion":"1.0.0","disableCheck":true`} {
		b := newBench(t)
		text := "{" + head + `,"name":"old","plugins":[` + hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24") + "]}"
		if !json.Valid([]byte(text)) {
			t.Fatal(text)
		}
		b.must(os.WriteFile(filepath.Join(b.conf, "old.conflist"), []byte(text), 0o600))
		b.attach("old", id)
		b.healthy("attachments")
		b.must(netlink.LinkSetDown(b.link("br0")))
		b.finds("attachments", "problem: old/"+id+": Interface br0 is down")
	}
}

// The check writes nothing, not even a lock.
func TestAskingWritesNothing(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.attach("pods", "c1")
	before := tree(t, b.paths.Run) + tree(t, b.paths.CNI)
	b.healthy("attachments")
	b.healthy("firewall")
	if after := tree(t, b.paths.Run) + tree(t, b.paths.CNI); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// tree lists files with their times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(path + " " + fi.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The host drops answers that come in through a link that does not forward.
func TestForwardingOfAWayOut(t *testing.T) {
	b := newBench(t)
	b.defaultRoute(b.veth("up0", "192.0.2.2/24"), "192.0.2.1", 0)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	b.attach("pods", "c1")
	b.healthy("forwarding")
	b.sysctl("net/ipv4/conf/up0/forwarding", "0")
	b.finds("forwarding", "problem: IPv4 forwarding is off for packets from up0, so containers of pods get no answers")
}

// A container died without a DEL, and another container's namespace is at its path. What the dead
// container needed is not required any more.
func TestForwardingForTheDead(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	path := b.attach("pods", "c1")
	held, err := netns.Open(path) // so that the kernel does not use its inode number again
	b.must(err)
	defer held.Close() //nolint:errcheck // a test
	b.must(netns.Delete(path))
	b.must(netns.Create(path))
	b.sysctl("net/ipv4/ip_forward", "0")
	b.healthy("forwarding")
	b.healthy("attachments")
}

// A list is of a version without STATUS. The STATUS of our own plugins still runs.
func TestStatusOfAnOldList(t *testing.T) {
	b := newBench(t)
	b.veth("br0", "")
	text := `{"cniVersion":"1.0.0","name":"old","plugins":[` + hostLocal("bridge", `"bridge":"br0",`, "10.88.0.0/24") + `,{"type":"theirs"}]}`
	b.must(os.WriteFile(filepath.Join(b.conf, "old.conflist"), []byte(text), 0o600))
	b.finds("status", `problem: network old takes no containers now: "br0" already exists but is not a bridge`)
}
