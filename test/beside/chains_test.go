// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const mesh = "beside"

// TestChains makes every chain with a hook that a kernel needs no flowtables for, and compares the page with what the
// kernel then has.
func TestChains(t *testing.T) {
	fw := open(t)
	compare(t, fw, slices.DeleteFunc(rows(t), ofFastPath))
}

func TestChainOfTheFastPath(t *testing.T) {
	nettest.Need(t, nettest.Flowtables())
	fw := open(t)
	fw.Add(nft.FastPath("cni0", "wan0", mesh))
	fw.Queue(nft.EnsureFastPath("cni0", "wan0"))
	compare(t, fw, rows(t))
}

func ofFastPath(row string) bool { return strings.HasPrefix(row, "| `inet fastpath` ") }

// compare commits what is queued, and compares the page's rows with the kernel's chains.
func compare(t *testing.T, fw *nft.Conn, page []string) {
	t.Helper()
	if err := fw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var kernel []string
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		kernel = append(kernel, hooked(t, fw, family, nft.TableName, "")...)
	}
	kernel = append(kernel, hooked(t, fw, nftables.TableFamilyINet, nft.ServicesTable, nft.ServicesTable+" ")...)
	if tellsNew(t) {
		kernel = append(kernel, hooked(t, fw, nftables.TableFamilyINet, nft.FlowsTable, nft.FlowsTable+" ")...)
	} else {
		page = slices.DeleteFunc(page, func(row string) bool { return strings.HasPrefix(row, "| `inet "+nft.FlowsTable+" ") })
	}
	slices.Sort(kernel)
	slices.Sort(page)
	if !slices.Equal(kernel, page) {
		t.Errorf("the kernel has\n%s\nand docs/beside.md\n%s", strings.Join(kernel, "\n"), strings.Join(page, "\n"))
	}
}

// tellsNew makes the chains of `patchbay flows -f`, which need Linux 5.12.
func tellsNew(t *testing.T) bool {
	t.Helper()
	rules, err := nft.TellNewConnections(1, 1)
	if errors.Is(err, nft.ErrOwner) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rules.Close(); err != nil {
			t.Error(err)
		}
	})
	return true
}

// open returns a connection with what makeAll queues.
func open(t *testing.T) *nft.Conn {
	t.Helper()
	fw := nft.Open(t.TempDir())
	makeAll(t, fw)
	t.Cleanup(func() {
		all, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		all.FlushRuleset()
		if err := errors.Join(all.Flush(), fw.Close()); err != nil {
			t.Error(err)
		}
	})
	return fw
}

// makeAll queues everything that makes a chain with a hook on every kernel.
func makeAll(t *testing.T, fw *nft.Conn) {
	t.Helper()
	for _, name := range []string{"cni0", "wan0"} {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatalf("make %s: %v", name, err)
		}
		t.Cleanup(func() { _ = netlink.LinkDel(link) }) // fails only if the test has
	}
	pods, end := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParseAddr("192.0.2.1")
	fw.Add(nft.CheckMAC("veth1", net.HardwareAddr{2, 0, 0, 0, 0, 1}, mesh)...)
	fw.Add(nft.GuardLoopback("cni0", mesh))
	fw.Queue(nft.GuardLinks(nft.Links{Mesh: mesh, Bridges: []string{"cni0"}, Uplinks: []string{"wan0"}, Networks: []netip.Prefix{pods}}))
	fw.Queue(nft.GuardPlain(nft.Plain{Mesh: mesh, From: []netip.Prefix{pods}}))
	fw.Queue(nft.GuardTunnel(nft.Tunnel{Name: mesh, Port: 4789, VNI: 1, From: []nft.TunnelSource{{End: end, First: pods.Addr(), Last: pods.Addr()}}}))
	fw.Queue(&nft.ServicesWork{Next: nft.ServicesRevision{}.Next()})
	enforce.Close(fw, enforce.Closure{
		Link: "veth1", Port: "veth2", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Close: [2]bool{true, true}, Comment: mesh,
	}, false)
}

// hooked returns the rows of the chains with a hook that a table has. Their names begin with prefix.
func hooked(t *testing.T, fw *nft.Conn, family nftables.TableFamily, tableName, prefix string) (list []string) {
	t.Helper()
	table, err := fw.ReadTable(family, tableName)
	if err != nil || table == nil {
		t.Fatalf("read table of family %v: %v, %v", family, table, err)
	}
	hooks := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	for _, c := range table.Chains {
		if !c.Base {
			continue
		}
		if c.Drops {
			t.Errorf("chain %s drops by policy", c.Name)
		}
		name := strings.Replace(c.Name, mesh, "<mesh>", 1)
		list = append(list, fmt.Sprintf("| `%s %s` | %s %s | %d |", nft.FamilyName(family), prefix+name, c.Type, hooks[c.Hook], c.Prio))
	}
	return list
}

// rows returns the first three cells of each row of the page's table of chains.
func rows(t *testing.T) (list []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/beside.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| chain | type and hook | priority |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, line := range strings.Split(table, "\n")[2:] {
		if cells := strings.SplitN(line, " | ", 4); len(cells) == 4 {
			list = append(list, strings.Join(cells[:3], " | ")+" |")
		}
	}
	return list
}
