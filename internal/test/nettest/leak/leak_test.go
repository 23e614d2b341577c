// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestTake creates one object of every kind and looks for exactly those. Then it removes them and
// looks for nothing.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	before := leak.Must(t, dir)
	undo := clutter(t, dir)
	want := []string{
		"address veth a 10.1.2.1/24",
		"file " + dir + "/state/record",
		"link veth a", "link veth b",
		"nft chain inet left c",
		"nft element inet left s 0a010202 :",
		"nft rule inet left c counter verdict(0 )",
		"nft set inet left s",
		"nft table inet left",
		"qdisc veth a tbf 1:0",
		"route veth a 10.1.2.0/24 via <nil> table 254",
	}
	got := leak.Must(t, dir).Beyond(before)
	rules := got.Of("rule")
	got = got.Without(func(l string) bool { return strings.HasPrefix(l, "rule ") })
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	if d := cmp.Diff(leak.State(want), got); d != "" {
		t.Errorf("state (-want +got):\n%s", d)
	}
	if len(rules) != 1 {
		t.Errorf("policy rules: %v, want one", rules)
	}
	undo()
	leak.NoLeaks(t, before, dir)
}

// clutter creates one object of every kind and returns the function that removes them.
func clutter(t *testing.T, dir string) (undo func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}))
	a, err := netlink.LinkByName("a")
	must(err)
	must(netlink.LinkSetUp(a))
	must(netlink.AddrAdd(a, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 2, 1), Mask: net.CIDRMask(24, 32)}}))
	must(netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: a.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1 << 20, Buffer: 1 << 16, Limit: 1 << 16,
	}))
	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Family = 100, 100, netlink.FAMILY_V4
	must(netlink.RuleAdd(rule))

	fw, err := nftables.New()
	must(err)
	table := fw.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "left"})
	set := &nftables.Set{Table: table, Name: "s", KeyType: nftables.TypeIPAddr}
	must(fw.AddSet(set, []nftables.SetElement{{Key: []byte{10, 1, 2, 2}}}))
	chain := fw.AddChain(&nftables.Chain{Table: table, Name: "c"})
	fw.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{Packets: 7}, &expr.Verdict{Kind: expr.VerdictDrop}}})
	must(fw.Flush())

	must(os.MkdirAll(filepath.Join(dir, "state", "empty"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "state", "record"), nil, 0o600))
	return func() {
		must(netlink.LinkDel(a))
		must(netlink.RuleDel(rule))
		fw.DelTable(table)
		must(fw.Flush())
		must(os.RemoveAll(filepath.Join(dir, "state")))
	}
}

// TestBeyond counts equal lines: two equal rules are two things.
func TestBeyond(t *testing.T) {
	before := leak.State{"link veth a", "nft rule x"}
	after := leak.State{"nft rule x", "nft rule x", "link veth b"}
	if d := cmp.Diff(leak.State{"nft rule x", "link veth b"}, after.Beyond(before)); d != "" {
		t.Errorf("beyond (-want +got):\n%s", d)
	}
}

// TestChanged changes attributes of a link. A link that is new has no changes.
func TestChanged(t *testing.T) {
	take := func() leak.Attributes {
		t.Helper()
		a, err := leak.TakeAttributes()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	empty := take()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(link) //nolint:errcheck // the namespace ends with the tests
	before := take()
	if err := errors.Join(netlink.LinkSetMTU(link, 1400), netlink.SetPromiscOn(link), netlink.LinkSetAlias(link, "mine")); err != nil {
		t.Fatal(err)
	}
	after := take()
	want := leak.State{`changed veth a alias from "" to "mine"`, "changed veth a mtu from 1500 to 1400", "changed veth a promisc from false to true"}
	if d := cmp.Diff(want, after.Changed(before)); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	if got := after.Changed(empty); len(got) > 0 {
		t.Errorf("a new link changed:\n%s", got)
	}
}

// TestStanding separates what belongs to a network from what belongs to an attachment.
func TestStanding(t *testing.T) {
	for line, want := range map[string]bool{
		"link bridge cni0":                                     true,
		"link veth veth01234567":                               false,
		"changed bridge cni0 address from 02 to 06":            true,
		"changed veth eth0 mtu from 1500 to 1400":              false,
		"address bridge cni0 10.1.2.1/24":                      true,
		"route veth veth01234567 10.1.2.3/32 via <nil>":        false,
		"rule ip rule 100":                                     false,
		"nft table inet patchbay":                              true,
		"nft chain bridge patchbay prerouting":                 true,
		"nft set inet patchbay ports4":                         true,
		"nft element inet patchbay schema 0000 : 0001":         true,
		"nft element inet patchbay ports4 06 : 0a":             false,
		"nft element inet patchbay masq4 0a : ":                false,
		"nft table ip cni_hostport":                            false,
		"nft table ip nat":                                     true,
		"nft chain ip6 nat POSTROUTING":                        true,
		"nft chain ip nat CNI-HOSTPORT-DNAT":                   false,
		"nft rule ip nat POSTROUTING":                          false,
		"file /var/lib/cni/networks/n/lock":                    true,
		"file /var/lib/cni/networks/n/last_reserved_ip.0":      true,
		"file /var/lib/cni/networks/n/10.1.2.3":                false,
		"file /var/lib/cni/results/n-one-eth0":                 false,
		"file /run/patchbay/attachments/n/abcdefghijklmno.ptp": false,
		"file /run/patchbay/nft.lock":                          true,
	} {
		if got := leak.Standing(line); got != want {
			t.Errorf("Standing(%q) is %v", line, got)
		}
	}
}
