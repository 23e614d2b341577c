// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// madeByReference returns the commands that make what the reference v1.9.1 makes for an
// attachment, in both its forms.
func madeByReference(a Names, ip string) string {
	return fmt.Sprintf(`
iptables-nft -t nat -N %[2]s 2>/dev/null || true
iptables-nft -t nat -A %[2]s -d 10.9.0.0/16 -m comment --comment 'name: "%[4]s" id: "%[5]s"' -j ACCEPT
iptables-nft -t nat -A %[2]s ! -d 224.0.0.0/4 -m comment --comment 'name: "%[4]s" id: "%[5]s"' -j MASQUERADE
iptables-nft -t nat -A POSTROUTING -s %[1]s -m comment --comment 'name: "%[4]s" id: "%[5]s"' -j %[2]s
iptables-nft -t nat -N CNI-HOSTPORT-DNAT 2>/dev/null || true
iptables-nft -t nat -N %[3]s 2>/dev/null || true
iptables-nft -t nat -A %[3]s -p tcp --dport 80 -j DNAT --to-destination %[1]s:80
iptables-nft -t nat -A CNI-HOSTPORT-DNAT -m comment --comment 'dnat name: "%[4]s" id: "%[5]s"' -m multiport -p tcp --destination-ports 80,81 -j %[3]s
iptables-nft -N CNI-FORWARD 2>/dev/null || true
iptables-nft -A CNI-FORWARD -d %[1]s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -A CNI-FORWARD -s %[1]s -j ACCEPT
nft -f - <<EOT
add table ip cni_hostport
add chain ip cni_hostport hostports
add chain ip cni_hostport masquerading
add rule ip cni_hostport hostports tcp dport 80 dnat to %[1]s:80 comment "%[5]s"
add rule ip cni_hostport masquerading ip saddr %[1]s ip daddr %[1]s masquerade comment "%[5]s"
add table inet cni_plugins_masquerade
add chain inet cni_plugins_masquerade masq_checks
add rule inet cni_plugins_masquerade masq_checks ip saddr == %[1]s ip daddr != 10.9.0.0/16 masquerade comment "%[6]s, net: %[4]s, if: %[7]s, id: %[5]s"
add table bridge nat
add chain bridge nat PREROUTING { type filter hook prerouting priority -300; }
add chain bridge nat %[8]s
add chain bridge nat %[8]s-mac
add rule bridge nat PREROUTING iifname "v%[7]s" jump %[8]s comment "macspoofchk-%[5]s-%[7]s"
add rule bridge nat %[8]s jump %[8]s-mac
add rule bridge nat %[8]s-mac ether saddr 02:00:00:00:00:01 return
add rule bridge nat %[8]s-mac drop
EOT
`, ip, a.chainName(""), a.chainName("DN-"), a.Network, a.ContainerID, a.masqHash(), a.IfName, a.spoofChain())
}

// The empty tables and chains of the reference remain, as after its own DEL.
const frame = `iptables-nft -t nat -N CNI-HOSTPORT-DNAT; iptables-nft -N CNI-FORWARD
iptables-nft -t nat -A POSTROUTING -j RETURN; iptables-nft -t nat -D POSTROUTING -j RETURN
nft -f - <<EOT
add table ip cni_hostport
add chain ip cni_hostport hostports
add chain ip cni_hostport masquerading
add table inet cni_plugins_masquerade
add chain inet cni_plugins_masquerade masq_checks
add table bridge nat
add chain bridge nat PREROUTING { type filter hook prerouting priority -300; }
EOT
iptables-nft -t nat -S; iptables-nft -S; nft list ruleset | grep -v '^#' | sort`

const list = "iptables-nft -t nat -S; iptables-nft -S; nft list ruleset | grep -v '^#' | sort"

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// The test compares our names with the names that the reference's own code computes.
func TestReferenceNames(t *testing.T) {
	a := Names{"test", "1234", "eth0"}
	// This case is from pkg/utils/utils_test.go of the reference.
	if got := a.chainName(""); got != "CNI-2bbe0c48b91a7d1b8a6753a8" {
		t.Errorf("chain %s", got)
	}
	if got := a.chainName("DN-"); len(got) != chainLength || !strings.HasPrefix(got, "CNI-DN-2bbe0c48b91a7d1b8a675") {
		t.Errorf("chain %s", got)
	}
}

func TestLeftovers(t *testing.T) {
	c := open(t)
	clean := sh(t, frame)
	one, two := Names{"pods", "c1", "eth0"}, Names{"pods", "c2", "eth0"}
	second := Names{"pods", "c1", "net1"} // of the same container
	sh(t, madeByReference(two, "10.9.0.6"))
	withTwo := sh(t, list)
	sh(t, madeByReference(one, "10.9.0.5"))
	commit(t, c, Leftovers(one, addrs("10.9.0.5", "fd00::5")))
	if got := sh(t, list); got != withTwo {
		t.Errorf("after the first went:\n%s\nwant:\n%s", got, withTwo)
	}
	t.Run("without addresses", func(t *testing.T) {
		sh(t, madeByReference(one, "10.9.0.5"))
		commit(t, c, Leftovers(one, nil))
		got := sh(t, list)
		if strings.Count(got, "10.9.0.5") != 4 || strings.Contains(got, one.chainName("")) {
			t.Errorf("more than the ownerless rules of CNI-FORWARD is left:\n%s", got)
		}
		commit(t, c, Leftovers(one, addrs("10.9.0.5")))
	})
	t.Run("second interface", func(t *testing.T) {
		sh(t, madeByReference(second, "10.9.0.7"))
		sh(t, fmt.Sprintf("iptables-nft -t nat -A POSTROUTING -s 10.9.0.5 -j %s", one.chainName("")))
		commit(t, c, Leftovers(one, addrs("10.9.0.5")))
		got := sh(t, list)
		if strings.Contains(got, "10.9.0.5") || !strings.Contains(got, "-s 10.9.0.7/32") || !strings.Contains(got, one.chainName("")) {
			t.Errorf("not exactly the one interface:\n%s", got)
		}
		commit(t, c, Leftovers(second, addrs("10.9.0.7")))
	})
	commit(t, c, Leftovers(two, addrs("10.9.0.6")))
	if got := sh(t, list); got != clean {
		t.Errorf("left behind:\n%s\nwant:\n%s", got, clean)
	}
}

func TestSweep(t *testing.T) {
	c := open(t)
	dead, alive := Names{"pods", "c1", "eth0"}, Names{"pods", "c2", "eth0"}
	other := Names{"pods2", "c1", "eth0"}
	sh(t, madeByReference(dead, "10.9.0.5")+madeByReference(alive, "10.9.0.6")+madeByReference(other, "10.9.0.7"))
	commit(t, c, Sweep("pods", []Names{alive}))
	got := sh(t, "iptables-nft -t nat -S; nft list table inet cni_plugins_masquerade")
	if strings.Contains(got, "10.9.0.5") || strings.Contains(got, dead.chainName("DN-")) {
		t.Errorf("the dead is still there:\n%s", got)
	}
	for _, ip := range []string{"10.9.0.6", "10.9.0.7"} {
		if strings.Count(got, ip) != 3 {
			t.Errorf("%s lost something:\n%s", ip, got)
		}
	}
	commit(t, c, Sweep("pods", []Names{alive}), Sweep("nowhere", nil))
}

// On a clean node a query creates nothing.
func TestLeftoversOfNobody(t *testing.T) {
	c := open(t)
	commit(t, c, Leftovers(Names{"pods", "c1", "eth0"}, addrs("10.9.0.5")), Sweep("pods", nil), Unaccept(prefixes("10.1.0.0/16"), ""))
	for _, f := range families() {
		if got, err := c.ReadPresence(nft.Ref{Family: f, Table: "nat"}, nft.Ref{Family: f, Table: "filter"}); err != nil || got[0].Found || got[1].Found {
			t.Errorf("tables were made: %v, %v", got, err)
		}
	}
}

func TestLegacy(t *testing.T) {
	if tables, err := LegacyTables(t.TempDir()); err != nil || len(tables) > 0 {
		t.Errorf("without procfs: %v, %v", tables, err)
	}
	nettest.Need(t, nettest.Program("iptables-legacy"))
	nettest.Need(t, nettest.Feature{Name: "iptables-legacy (CONFIG_IP_NF_FILTER) and its list", Probe: func() error {
		return unix.Access("/proc/net/ip_tables_names", unix.R_OK)
	}})
	// The tables of iptables-legacy cannot be removed again. So the test uses a namespace of its own.
	ns, err := netns.Open(nettest.NewNS(t, "legacy"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // only read
	if err := ns.Do(func() error { return legacy(t) }); err != nil {
		t.Error(err)
	}
}

// legacy runs in a namespace without tables.
func legacy(t *testing.T) error {
	for _, c := range []struct {
		cmd string
		v6  bool
		to  bool
	}{
		{"iptables-legacy -A FORWARD -s 10.0.0.0/8 -j ACCEPT", false, false},
		{"iptables-legacy -A FORWARD -s 10.0.0.0/8 -m conntrack --ctstate NEW -j DROP", false, true},
		{"iptables-legacy -F FORWARD; iptables-legacy -A INPUT -j DROP", false, false},
		{"iptables-legacy -P FORWARD DROP", false, true},
		{"ip6tables-legacy -P OUTPUT DROP", true, false},
		{"ip6tables-legacy -A FORWARD -j REJECT", true, true},
		{"ip6tables-legacy -F FORWARD; ip6tables-legacy -P FORWARD DROP", true, true},
	} {
		if out, err := exec.Command("sh", "-ec", c.cmd).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", c.cmd, err, out)
		}
		if got, err := LegacyForwardDrops(c.v6); err != nil || got != c.to {
			t.Errorf("after %q: drops %v, %v", c.cmd, got, err)
		}
	}
	if tables, err := LegacyTables("/proc"); err != nil || fmt.Sprint(tables) != "[ip filter ip6 filter]" {
		t.Errorf("tables %v, %v", tables, err)
	}
	return nil
}

func FuzzEntriesDrop(f *testing.F) {
	f.Add(make([]byte, 300), 0, 200, 88)
	f.Fuzz(func(_ *testing.T, b []byte, at, policy, targetAt int) {
		if targetAt == 88 || targetAt == 140 {
			entriesDrop(b, at, policy, targetAt)
		}
	})
}
