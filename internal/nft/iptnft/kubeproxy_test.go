// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// kubeProxyRules makes what kube-proxy 1.36 makes for one Service in the modes iptables and nftables, and the kubelet's chains.
const kubeProxyRules = `
for ipt in iptables-nft ip6tables-nft; do
for c in KUBE-SERVICES KUBE-NODEPORTS KUBE-POSTROUTING KUBE-MARK-MASQ KUBE-PROXY-CANARY KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SEP-ABCDEFGHIJKLMN23 KUBE-SEP-ABCDEFGHIJKLMN24 KUBE-KUBELET-CANARY; do $ipt -t nat -N $c; done
$ipt -t nat -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
$ipt -t nat -A OUTPUT -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
$ipt -t nat -A POSTROUTING -m comment --comment 'kubernetes postrouting rules' -j KUBE-POSTROUTING
$ipt -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
$ipt -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
$ipt -t nat -A KUBE-POSTROUTING -j MASQUERADE
$ipt -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
$ipt -t nat -A KUBE-SERVICES -p tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y
$ipt -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
$ipt -t nat -A KUBE-SVC-NPX46M4PTMTKRN6Y -m statistic --mode random --probability 0.5 -j KUBE-SEP-ABCDEFGHIJKLMN23
$ipt -t nat -A KUBE-SVC-NPX46M4PTMTKRN6Y -j KUBE-SEP-ABCDEFGHIJKLMN24
$ipt -t nat -A KUBE-SEP-ABCDEFGHIJKLMN23 -j KUBE-MARK-MASQ
for c in KUBE-SERVICES KUBE-EXTERNAL-SERVICES KUBE-FORWARD KUBE-NODEPORTS KUBE-PROXY-FIREWALL KUBE-FIREWALL KUBE-IPTABLES-HINT; do $ipt -N $c; done
$ipt -A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
$ipt -A INPUT -j KUBE-NODEPORTS
$ipt -A INPUT -j KUBE-FIREWALL
$ipt -A FORWARD -j KUBE-FORWARD
$ipt -A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
$ipt -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
$ipt -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
$ipt -t mangle -N KUBE-PROXY-CANARY
done
nft -f - <<EOT
table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.1 }; }
	chain services { }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; }
}
table ip6 kube-proxy { chain services { }; }
EOT
`

// others has what users made beside it.
const others = `
iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT
iptables-nft -t nat -N KUBE-SVC-mine
iptables-nft -t nat -N KUBE-ROUTER-FORWARD
iptables-nft -t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
`

const flushAll = "nft flush ruleset"

// everything returns the ruleset without counters and handles.
func everything(t *testing.T) string { return sh(t, "nft -s list ruleset") }

// TestKubeProxies removes all that kube-proxy has, and nothing else.
func TestKubeProxies(t *testing.T) {
	c := nft.Open(t.TempDir())
	t.Cleanup(func() { sh(t, flushAll); c.Close() }) //nolint:errcheck // a test
	sh(t, flushAll+kubeProxyRules+others)
	list, err := KubeProxies(c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range list {
		words := append([]string{nft.FamilyName(k.Table.Family), k.Table.Table}, k.Kinds()...)
		if got = append(got, strings.Join(words, " ")); len(k.Used) > 0 {
			t.Errorf("%v: used: %q", k.Table, k.Used)
		}
	}
	const nat, filter = " nat KUBE-MARK-MASQ KUBE-NODEPORTS KUBE-POSTROUTING KUBE-PROXY-CANARY KUBE-SEP-* (2) KUBE-SERVICES KUBE-SVC-* (1)",
		" filter KUBE-EXTERNAL-SERVICES KUBE-FORWARD KUBE-NODEPORTS KUBE-PROXY-FIREWALL KUBE-SERVICES"
	want := "ip kube-proxy\nip" + nat + "\nip" + filter + "\nip mangle KUBE-PROXY-CANARY\nip6" + nat + "\nip6" + filter + "\nip6 mangle KUBE-PROXY-CANARY"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	for _, k := range list {
		if err := k.Remove(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range list { // again, as after a crash
		if err := k.Remove(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
	after := everything(t)
	for _, name := range []string{"KUBE-SERVICES", "KUBE-SVC-N", "KUBE-SEP", "KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-FORWARD", "KUBE-PROXY", "table ip kube-proxy"} {
		if strings.Contains(after, name) {
			t.Errorf("%s is left:\n%s", name, after)
		}
	}
	for _, name := range []string{"chain KUBE-FIREWALL", "jump KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-SVC-mine", "KUBE-ROUTER-FORWARD", "dport 22", "10.0.0.0/8", "table ip6 kube-proxy"} {
		if !strings.Contains(after, name) {
			t.Errorf("%s, which is not kube-proxy's, is gone:\n%s", name, after)
		}
	}
	if list, err = KubeProxies(c); err != nil || len(list) > 0 {
		t.Errorf("afterwards: %v, %v", list, err)
	}
}

// A chain to which somebody else's rule leads stays, with what it needs.
func TestKubeProxyChainsOfOthers(t *testing.T) {
	c := nft.Open(t.TempDir())
	t.Cleanup(func() { sh(t, flushAll); c.Close() }) //nolint:errcheck // a test
	sh(t, flushAll+kubeProxyRules+`
iptables-nft -t nat -N CNI-HOSTPORT-SETMARK
iptables-nft -t nat -A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
`)
	k, err := kubeProxyIn(c, nft.Ref{Family: families()[0], Table: tableNAT})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(k.Used, " "); got != "KUBE-MARK-MASQ KUBE-POSTROUTING" {
		t.Errorf("used: %q", got)
	}
	if err := k.Remove(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	after := sh(t, "nft -s list table ip nat")
	for _, line := range []string{"jump KUBE-MARK-MASQ", "jump KUBE-POSTROUTING", "chain KUBE-POSTROUTING"} {
		if !strings.Contains(after, line) {
			t.Errorf("%q is gone:\n%s", line, after)
		}
	}
	if strings.Contains(after, "KUBE-SERVICES") {
		t.Errorf("KUBE-SERVICES is left:\n%s", after)
	}
}
