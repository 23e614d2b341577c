// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// Rules of other programs drop traffic that we accept, in a chain that runs before or after ours.
func TestRuleDrops(t *testing.T) {
	const theirs = "add table inet theirs; add chain inet theirs f { type filter hook forward priority -10; }; "
	for _, c := range []struct {
		name, program, input string
		want                 []string
	}{
		{"first of all", "iptables-nft", "-I FORWARD -j DROP", []string{"problem: rule 1 of chain FORWARD of table ip filter drops, in the traffic that leaves of containers of pods", "problem: that comes in"}},
		{"return before the accept", "iptables-nft", "-I FORWARD -j RETURN", []string{"problem: rule 1 of chain FORWARD, and the policy of the chain of table ip filter drops", "problem: that comes in"}},
		{"mangle", "iptables-nft", "-t mangle -A FORWARD -o br0 -j DROP", []string{"problem: rule 1 of chain FORWARD of table ip mangle drops, in the traffic that comes in"}},
		{"raw", "iptables-nft", "-t raw -A PREROUTING -s 10.88.0.0/16 -j DROP", []string{"problem: rule 1 of chain PREROUTING of table ip raw"}},
		{"the operator's", "iptables-nft", "-A CNI-ADMIN -s 10.88.0.0/24 -j DROP", []string{"warning: rule 1 of chain CNI-ADMIN"}},
		{"another table", "nft", theirs + "add rule inet theirs f ct state established,related accept; add rule inet theirs f drop", []string{"problem: rule 2 of chain f of table inet theirs", "problem: that comes in"}},
		{"a chain that is called", "nft", theirs + "add chain inet theirs sub; add rule inet theirs sub counter reject; add rule inet theirs f iifname \"br*\" jump sub", []string{"problem: rule 1 of chain sub"}},
		{"by address", "nft", theirs + "add rule inet theirs f ip daddr 10.88.0.2 drop", []string{"problem: rule 1 of chain f of table inet theirs drops, in the traffic that comes in"}},
		{"after what may accept", "nft", theirs + "add rule inet theirs f tcp dport 80 accept; add rule inet theirs f drop", []string{"warning: rule 2 of chain f of table inet theirs drops what nothing before it accepts", "warning: that comes in"}},
		{"by index", "nft", theirs + "add rule inet theirs f iif br0 drop; add rule inet theirs f oif lo drop", []string{"problem: rule 1 of chain f of table inet theirs drops, in the traffic that leaves"}},
		{"behind routing", "nft", "add table inet theirs; add chain inet theirs p { type filter hook postrouting priority 0; }; add rule inet theirs p ip daddr 10.88.0.0/24 drop; add rule inet theirs p ip saddr 10.88.0.0/24 drop",
			[]string{"problem: rule 2 of chain p of table inet theirs drops, in the traffic that leaves", "problem: rule 1 of chain p of table inet theirs drops, in the traffic that comes in"}},
		{"behind source NAT", "nft", "add table inet theirs; add chain inet theirs p { type filter hook postrouting priority 110; }; add rule inet theirs p ip saddr 10.88.0.0/24 drop", nil},
		{"our chain for operators", "nft", "add rule inet patchbay admin drop", []string{"warning: rule 1 of chain admin", "warning: that comes in"}},
		{"in a set", "nft", theirs + "add rule inet theirs f iifname { br0, br1 } drop; add rule inet theirs f ip daddr { 10.0.0.0/9, 10.128.0.0/9, 192.0.2.1 } drop", []string{"problem: rule 1 of chain f of table inet theirs drops, in the traffic that leaves", "problem: rule 2 of chain f"}},
		{"in no set", "nft", theirs + "add rule inet theirs f iifname != { br0, br1 } oifname != { br0, br1 } drop; add rule inet theirs f ip saddr { 10.99.0.0/16, 192.0.2.1 } drop; add rule inet theirs f tcp dport { 25, 465 } drop", nil},
		{"by a map", "nft", theirs + "add chain inet theirs sub; add rule inet theirs sub drop; add rule inet theirs f oifname vmap { br1 : accept, br0 : jump sub }; add rule inet theirs f iifname vmap { up0 : drop, br0 : accept }; add rule inet theirs f drop",
			[]string{"problem: rule 1 of chain sub of table inet theirs drops, in the traffic that comes in"}},
		{"by states", "nft", theirs + "add rule inet theirs f ct state vmap { established : accept, related : accept, invalid : drop }; add rule inet theirs f drop", []string{"problem: rule 2 of chain f", "problem: that comes in"}},
		{"with states accepted", "nft", theirs + "add rule inet theirs f ct state { established, related } accept; add rule inet theirs f iifname { br0 } accept; add rule inet theirs f ip daddr { 10.88.0.0/16 } ct state { new } accept; add rule inet theirs f tcp dport vmap { 22 : drop }", nil},
		{"in a set of several fields", "nft", theirs + "add rule inet theirs f iifname . ip saddr { br0 . 10.88.0.0/16, br1 . 10.89.0.0/16 } drop; add rule inet theirs f ip daddr . oifname { 10.88.0.0/24 . br0 } drop",
			[]string{"problem: rule 1 of chain f of table inet theirs drops, in the traffic that leaves", "problem: rule 2 of chain f of table inet theirs drops, in the traffic that comes in"}},
		{"in no set of several fields", "nft", theirs + "add rule inet theirs f iifname . ip saddr { br1 . 10.88.0.0/16, br0 . 10.89.0.0/16 } drop; add rule inet theirs f iifname . ct state { br1 . new } drop; add rule inet theirs f ip saddr . tcp dport { 10.88.0.0/24 . 25 } drop; add rule inet theirs f iifname . oifname vmap { br0 . up0 : drop, br1 . up0 : drop }", nil},
		{"in a set for all others", "nft", theirs + "add set inet theirs s { type ipv4_addr; flags interval; elements = { 10.99.0.0/16, * } }; add rule inet theirs f ip saddr @s drop",
			[]string{"warning: rule 1 of chain f of table inet theirs may drop what doctor cannot decide, in the traffic that leaves", "warning: that comes in"}},
		{"what begins", "nft", theirs + "add rule inet theirs f ct state new drop", []string{"problem: rule 1 of chain f of table inet theirs drops what begins a connection, in the traffic that leaves", "warning: that comes in"}},
		{"what begins, by a set", "nft", theirs + "add rule inet theirs f iifname br0 ct state { new, untracked } drop", []string{"problem: drops what begins a connection, in the traffic that leaves"}},
		{"what is no answer", "nft", theirs + "add rule inet theirs f iifname br0 ct state != { established, related } reject", []string{"problem: drops what begins a connection, in the traffic that leaves"}},
		{"what is not established", "nft", theirs + "add rule inet theirs f iifname br0 ct state != established counter drop", []string{"problem: drops what begins a connection, in the traffic that leaves"}},
		{"what begins, by a map", "nft", theirs + "add chain inet theirs sub; add rule inet theirs sub drop; add rule inet theirs f iifname br0 ct state vmap { new : jump sub, invalid : drop }", []string{"problem: rule 1 of chain sub of table inet theirs drops what begins"}},
		{"what begins, by interface", "nft", theirs + "add rule inet theirs f iifname . ct state { br0 . new } drop", []string{"problem: drops what begins a connection, in the traffic that leaves"}},
		{"what begins, in iptables", "iptables-nft", "-t mangle -A FORWARD -i br0 -m conntrack --ctstate NEW -j DROP", []string{"problem: rule 1 of chain FORWARD of table ip mangle drops what begins a connection, in the traffic that leaves"}},
		{"what begins some", "nft", theirs + "add rule inet theirs f ct state new tcp dport 25 drop; add rule inet theirs f ct state established accept; add rule inet theirs f iifname br0 ct state new accept; add rule inet theirs f iifname br1 ct state new drop", nil},
		{"on the bridge", "nft", "add table bridge theirs; add chain bridge theirs f { type filter hook forward priority 0; }; add rule bridge theirs f ip saddr 10.88.0.0/24 drop",
			[]string{"problem: rule 1 of chain f of table bridge theirs drops, in the traffic that leaves"}},
		{"on the bridge, by policy", "nft", "add table bridge theirs; add chain bridge theirs f { type filter hook prerouting priority 0; policy drop; }; add rule bridge theirs f ether type arp accept",
			[]string{"problem: the policy of chain f of table bridge theirs drops, in the traffic that leaves", "problem: that comes in"}},
		{"on the bridge, by Ethernet address", "nft", "add table bridge theirs; add chain bridge theirs f { type filter hook forward priority 0; }; add chain bridge theirs sub; add rule bridge theirs sub drop; add rule bridge theirs f ether saddr != 02:00:00:00:00:01 jump sub",
			[]string{"warning: rule 1 of chain sub of table bridge theirs may drop what doctor cannot decide, in the traffic that leaves", "warning: that comes in"}},
		{"on other ports", "nft", "add table bridge theirs; add chain bridge theirs f { type filter hook forward priority 0; }; add rule bridge theirs f iifname vnet0 drop; add rule bridge theirs f ip saddr 10.99.0.0/16 drop; add rule bridge theirs f ether type ip6 drop; add rule bridge theirs f iifname . oifname { vnet0 . vnet1 } drop", nil},
		{"on a device", "nft", "add table netdev theirs; add chain netdev theirs f { type filter hook ingress device br0 priority 0; }; add rule netdev theirs f ip saddr 10.88.0.0/24 drop; add rule netdev theirs f ip daddr 10.88.0.0/24 drop",
			[]string{"problem: rule 1 of chain f of table netdev theirs drops, in the traffic that leaves"}},
		{"on another device", "nft", "add table netdev theirs; add chain netdev theirs f { type filter hook ingress device lo priority 0; }; add rule netdev theirs f drop", nil},
		{"other networks", "nft", theirs + "add rule inet theirs f ip saddr 10.99.0.0/16 drop; add rule inet theirs f iifname != \"br0\" oifname \"docker0\" drop; add rule inet theirs f ip saddr 10.88.0.7 drop", nil},
		{"what nobody knows", "nft", theirs + "add rule inet theirs f ct state invalid drop; add rule inet theirs f tcp dport 25 drop; add rule inet theirs f iifname br0 oifname up0 drop; add rule inet theirs f iifname { br0, br1 } meta mark 5 drop", nil},
		{"accepted before", "nft", theirs + "add rule inet theirs f iifname br0 accept; add rule inet theirs f oifname br0 accept; add rule inet theirs f drop", nil},
		{"asleep", "nft", "add table inet theirs { flags dormant; }; add chain inet theirs f { type filter hook forward priority -10; }; add rule inet theirs f drop", nil},
		{"docker", "iptables-nft-restore", docker, nil},
		{"kube-proxy", "iptables-nft-restore", kubeProxy, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			nettest.Need(b, nettest.Program(c.program))
			b.network("pods", `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}},{"type":"firewall","backend":"iptables"}`)
			b.run("iptables-nft", "-P", "FORWARD", "DROP")
			cmd := exec.Command(c.program, strings.Fields(c.input)...)
			if c.program == "nft" {
				cmd = exec.Command("nft", c.input)
			}
			if c.program == "iptables-nft-restore" { // its rules existed first
				cmd = exec.Command(c.program, "--noflush")
				cmd.Stdin = strings.NewReader(c.input)
				b.output(cmd)
			}
			b.attach("pods", "c1")
			b.healthy("drop")
			if cmd.Stdin == nil {
				b.output(cmd)
			}
			b.finds("drop", c.want...)
		})
	}
}

// The host forwards nothing for an internal network. So it is no problem if rules drop the
// network's traffic. Nor is it a problem if forwarding is off, because the network's ADD does not
// switch forwarding on.
func TestInternal(t *testing.T) {
	b := newBench(t)
	nettest.Need(b, nettest.Program("iptables-nft"))
	b.network("inner", `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"internal":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}}`)
	b.run("iptables-nft", "-P", "FORWARD", "DROP")
	b.sysctl("net/ipv4/ip_forward", "0")
	b.attach("inner", "c1")
	for _, id := range []string{"drop", "firewall", "forwarding"} {
		b.healthy(id)
	}
	b.output(exec.Command("nft", "flush set inet patchbay internal"))
	b.finds("firewall", "problem: isolation")
}

// An element in the sets of bridges has no owner, and drops packets that we forward.
func TestOwnerlessOfBridges(t *testing.T) {
	b := newBench(t)
	nettest.Need(b, nettest.Program("nft"))
	b.network("pods", `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}},{"type":"firewall","ingressPolicy":"same-bridge"}`)
	b.attach("pods", "c1")
	b.healthy("firewall")
	b.output(exec.Command("nft", `add element inet patchbay apart { "br0" . "up0" }; add element inet patchbay isolation { "up0" }`))
	found := b.check("firewall")
	b.finds("firewall", "warning: has an element that no attachment made", "warning: has an element that no attachment made")
	for _, f := range found { // the hint must fix the finding
		_, line, _ := strings.Cut(f.Fix, "'")
		b.output(exec.Command("nft", strings.TrimSuffix(line, "'")))
	}
	b.healthy("firewall")
}

func (b *bench) output(cmd *exec.Cmd) {
	b.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// docker holds the rules of a dockerd 28 with two networks and a published port.
const docker = `*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
COMMIT
*filter
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-I FORWARD -j DOCKER-USER
-I FORWARD -j DOCKER-FORWARD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
`

// kubeProxy holds the rules that kube-proxy writes on a node without Services.
const kubeProxy = `*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-I FORWARD -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`
