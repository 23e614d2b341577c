// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens the test's namespace, and another one with the given name.
func open(t testing.TB, name string) (host, inside *Conn) {
	t.Helper()
	host, err := Host("/proc")
	must(t, err)
	ns, err := netns.Open(nettest.NewNS(t, name))
	must(t, err)
	inside, err = In(ns, "/proc")
	must(t, err)
	t.Cleanup(host.Close)
	t.Cleanup(inside.Close)
	return host, inside
}

// pair makes a veth pair with our own message and returns both ends.
func pair(t testing.TB, host, inside *Conn, v Veth) (near, far netlink.Link) {
	t.Helper()
	v.Name, v.Peer, v.PeerNS = "v0", "eth0", inside.NS.Fd()
	must(t, host.AddVeth(v))
	t.Cleanup(func() {
		if l, err := host.Link("v0"); err == nil {
			must(t, host.LinkDel(l))
		}
	})
	near, err := host.Link("v0")
	must(t, err)
	far, err = inside.Link("eth0")
	must(t, err)
	return near, far
}

func TestAddVeth(t *testing.T) {
	host, inside := open(t, "c")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	must(t, host.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := host.Link("br0")
	must(t, err)
	defer host.LinkDel(br) //nolint:errcheck // the namespace ends
	near, far := pair(t, host, inside, Veth{
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, PeerMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, MTU: 1400, Master: br.Attrs().Index,
	})
	n, f := near.Attrs(), far.Attrs()
	if n.MTU != 1400 || f.MTU != 1400 || n.HardwareAddr.String() != "02:00:00:00:00:01" || f.HardwareAddr.String() != "02:00:00:00:00:02" {
		t.Errorf("near %+v\nfar %+v", n, f)
	}
	if n.MasterIndex != br.Attrs().Index || n.Flags&net.FlagUp == 0 || f.Flags&net.FlagUp != 0 || n.ParentIndex != f.Index {
		t.Errorf("near %+v\nfar %+v", n, f)
	}
	if n.NumTxQueues != 1 || n.NumRxQueues != 1 || f.NumTxQueues != 1 || f.NumRxQueues != 1 {
		t.Errorf("near %d and %d queues, far %d and %d", n.NumTxQueues, n.NumRxQueues, f.NumTxQueues, f.NumRxQueues)
	}
	must(t, host.SetAlias("v0", "patchbay:x", PortFlags{Hairpin: true, Isolated: true}))
	flags, err := host.PortFlags(n.Index)
	must(t, err)
	if flags != (PortFlags{Hairpin: true, Isolated: true}) {
		t.Errorf("flags: %+v", flags)
	}
	if near, err = host.LinkAt(n.Index); err != nil || near.Attrs().Alias != "patchbay:x" {
		t.Errorf("alias: %v %v", near, err)
	}
	err = host.AddVeth(Veth{Name: "v0", Peer: "eth1", PeerNS: inside.NS.Fd()})
	if !errors.Is(err, unix.EEXIST) {
		t.Errorf("second pair: %v", err)
	}
}

func TestNotFound(t *testing.T) {
	host, _ := open(t, "c")
	for what, err := range map[string]error{
		"link": second(host.Link("nobody")), "index": second(host.LinkAt(4711)),
		"address": host.AddrDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 1, 1), Mask: net.CIDRMask(24, 32)}}),
		"route":   host.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 1, 1, 0), Mask: net.CIDRMask(24, 32)}}),
	} {
		if !IsNotFound(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Addrs returns one link's addresses only.
func TestAddrs(t *testing.T) {
	host, inside := open(t, "c")
	_, far := pair(t, host, inside, Veth{})
	must(t, inside.SetUp(far.Attrs().Index, false))
	lo, err := inside.Link("lo")
	must(t, err)
	must(t, inside.SetUp(lo.Attrs().Index, false))
	for _, a := range []string{"10.1.0.5/24", "fd01::5/64"} {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(t, inside.AddrAdd(far, addr))
	}
	list, err := inside.Addrs(far.Attrs().Index)
	must(t, err)
	found := map[string]uint32{}
	for _, a := range list {
		found[a.Prefix.String()] = a.Flags
	}
	if _, ok := found["127.0.0.1/8"]; ok || found["fd01::5/64"]&unix.IFA_F_NODAD == 0 || len(list) < 2 {
		t.Errorf("addresses: %v", list)
	}
	if _, ok := found["10.1.0.5/24"]; !ok {
		t.Errorf("addresses: %v", list)
	}
}

// The indexes of IPv6 settings in the kernel's list match the sysctls.
func TestIPv6Settings(t *testing.T) {
	host, inside := open(t, "c")
	pair(t, host, inside, Veth{})
	for _, conf := range []IPv6Conf{AcceptRA, DisableIPv6, AcceptDAD, NdiscNotify, KeepAddrOnDown, EnhancedDAD} {
		key := "net/ipv6/conf/eth0/" + conf.String()
		for _, value := range []string{"1", "0", "1"} {
			must(t, inside.SetSysctl(key, value))
			far, err := inside.Link("eth0")
			must(t, err)
			if got, ok := inside.IPv6Setting(far.Attrs().Index, conf); !ok || fmt.Sprint(got) != value {
				t.Errorf("%s: got %d %v, want %s", conf, got, ok, value)
			}
		}
	}
	if s, ok := inside.IPv6Setting(4711, AcceptRA); ok {
		t.Errorf("of a link nobody read: %d", s)
	}
}

func TestSetUpNotifies(t *testing.T) {
	host, inside := open(t, "c")
	_, far := pair(t, host, inside, Veth{})
	must(t, inside.SetUp(far.Attrs().Index, true))
	if v, err := inside.Sysctl("net/ipv4/conf/eth0/arp_notify"); err != nil || v != "1" {
		t.Errorf("arp_notify: %q %v", v, err)
	}
}

func TestForwarding(t *testing.T) {
	host, _ := open(t, "c")
	for family, key := range map[int]string{unix.AF_INET: "net/ipv4/ip_forward", unix.AF_INET6: "net/ipv6/conf/all/forwarding"} {
		for _, want := range []bool{true, false} {
			must(t, host.SetSysctl(key, map[bool]string{true: "1", false: "0"}[want]))
			if got, err := host.Forwarding(family); err != nil || got != want {
				t.Errorf("%s: got %v %v, want %v", key, got, err, want)
			}
		}
	}
}

func TestSwapSysctls(t *testing.T) {
	_, inside := open(t, "c")
	fail := func(s Setting, err error) error { return fmt.Errorf("refused %s: %w", s, err) }
	want := []Setting{{"net/ipv4/conf/lo/arp_notify", "1"}, {"net/ipv4/conf/lo/arp_ignore", "0"}}
	old, err := inside.SwapSysctls(want, fail)
	if err != nil || len(old) != 1 || old[0] != (Setting{"net/ipv4/conf/lo/arp_notify", "0"}) {
		t.Errorf("changed %v %v", old, err)
	}
	if old, err = inside.SwapSysctls(want, fail); err != nil || len(old) != 0 {
		t.Errorf("again: changed %v %v", old, err)
	}
	_, err = inside.SwapSysctls([]Setting{{"net/ipv4/conf/nobody/arp_notify", "1"}}, fail)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "refused net/ipv4/conf/nobody/arp_notify=1") {
		t.Errorf("missing: %v", err)
	}
	if _, err = inside.Sysctl("../../../etc/passwd"); err == nil {
		t.Error("a key led out of /proc/sys")
	}
}

// The test recognises a read-only /proc/sys. We do not bypass it with a mount of our own.
func TestReadOnly(t *testing.T) {
	_, inside := open(t, "c")
	must(t, inside.SetSysctl("net/ipv4/conf/lo/arp_notify", "1"))
	must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	defer unix.Unmount("/proc/sys", unix.MNT_DETACH) //nolint:errcheck // the mounts are the test's
	must(t, unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	_, other := open(t, "d")
	for _, c := range []*Conn{other} {
		if err := c.SetSysctl("net/ipv4/conf/lo/arp_notify", "1"); !errors.Is(err, ErrReadOnly) {
			t.Errorf("write: %v", err)
		}
		pass := func(_ Setting, err error) error { return err }
		if _, err := c.SwapSysctls([]Setting{{"net/ipv4/conf/lo/arp_notify", "0"}}, pass); err != nil {
			t.Errorf("a value that is there: %v", err)
		}
		if _, err := c.SwapSysctls([]Setting{{"net/ipv4/conf/lo/arp_notify", "1"}}, pass); !errors.Is(err, ErrReadOnly) {
			t.Errorf("swap: %v", err)
		}
	}
}

// Without the right to mount, and for a procfs elsewhere, the path is used.
func TestProcfsByPath(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/sys/net/ipv4", 0o755))
	must(t, os.WriteFile(dir+"/sys/net/ipv4/ip_forward", []byte("0\n"), 0o644))
	c, err := Host(dir)
	must(t, err)
	defer c.Close()
	must(t, c.SetSysctl("net/ipv4/ip_forward", "1"))
	if v, err := c.Sysctl("net/ipv4/ip_forward"); v != "1" && v != "1\n" || err != nil {
		t.Errorf("%q %v", v, err)
	}
}

func FuzzParseAddr(f *testing.F) {
	f.Add([]byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 1, 0, 5})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < unix.SizeofIfAddrmsg {
			return
		}
		if a, err := parseAddr(data); err == nil && !a.Prefix.Addr().IsValid() {
			t.Errorf("no address: %v", a)
		}
		find(data, unix.IFLA_AF_SPEC, unix.AF_INET6, unix.IFLA_INET6_CONF)
	})
}

// BenchmarkSysctl shows that a sysctl takes no longer if many namespaces have looked at one.
// Compare -bench Sysctl with namespaces=0 and 500.
func BenchmarkSysctl(b *testing.B) {
	for _, n := range []int{0, 500} {
		for i := range n {
			_, inside := open(b, fmt.Sprintf("n%d", i))
			must(b, inside.SetSysctl("net/ipv4/conf/lo/arp_notify", "1"))
		}
		b.Run(fmt.Sprintf("namespaces=%d", n), func(b *testing.B) {
			for b.Loop() {
				c, err := Host("/proc")
				must(b, err)
				if _, err := c.Sysctl("net/ipv4/ip_forward"); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

// If a link has a carrier, the kernel gives it an IPv6 address. After SetAliasQuiet the kernel
// does not.
func TestSetAliasQuiet(t *testing.T) {
	host, inside := open(t, "c")
	near, far := pair(t, host, inside, Veth{})
	must(t, host.SetAliasQuiet("v0", "patchbay:x", PortFlags{}))
	must(t, inside.SetUp(far.Attrs().Index, false))
	for range 6000 { // the carrier has come when the far end has an address
		if list, err := inside.Addrs(far.Attrs().Index); err != nil || len(list) > 0 {
			must(t, err)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	list, err := host.Addrs(near.Attrs().Index)
	must(t, err)
	if len(list) > 0 {
		t.Errorf("the near end got %v", list)
	}
	if link, err := host.Link("v0"); err != nil || link.Attrs().Alias != "patchbay:x" {
		t.Errorf("alias: %v %v", link, err)
	}
}

// Lives distinguishes a live namespace from a deleted one, and from a missing id.
func TestLives(t *testing.T) {
	host, err := Host("/proc")
	must(t, err)
	t.Cleanup(host.Close)
	path := "/run/netns/lives"
	must(t, netns.Create(path))
	ns, err := netns.Open(path)
	must(t, err)
	must(t, host.AddVeth(Veth{Name: "lives0", Peer: "eth0", PeerNS: ns.Fd()}))
	link, err := host.Link("lives0")
	must(t, err)
	id := link.Attrs().NetNsID
	must(t, netns.Delete(path))
	if !host.Lives(id) {
		t.Error("one that is held by an open file is gone")
	}
	must(t, ns.Close())
	for end := time.Now().Add(time.Minute); host.Lives(id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("one that nothing holds lives")
		}
	}
	if err := host.LinkDel(link); err != nil && !IsNotFound(err) { // the kernel may have deleted it already
		t.Error(err)
	}
	if host.Lives(id + 1000) {
		t.Error("one that never was lives")
	}
}
