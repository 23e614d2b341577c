// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
)

// If one table or chain accepts a packet, another table or an earlier chain may still drop it. So
// doctor follows the containers' traffic through all chains (package eval), and finds rules
// that drop it.

// ruleDrops finds rules, in any table, that drop traffic which the host forwards for networks.
func ruleDrops(n *Node) (found []Finding, err error) {
	tables, err := n.forwardTables()
	live, ports := n.liveAddresses(), n.ports()
	var by groups // the names of networks, by finding
	level := make(map[string]Level)
	for _, net := range n.Networks {
		for _, t := range tables {
			for _, d := range append(n.dropsOf(net, t, live[net.Name]), frameDrops(net, t, ports[net.Name])...) {
				by.add(d.What, net.Name)
				level[d.What] = d.Level
			}
		}
	}
	for _, what := range by.order {
		found = append(found, Finding{Level: level[what], What: what + " of containers of " + strings.Join(by.names[what], ", "),
			Fix: "remove the rule, or except the containers from it: an accept rule after it, or in another table, does not overrule it"})
	}
	return found, err
}

// dropsOf returns findings for the traffic of a network that a table drops. A drop of only one
// living container's traffic counts too.
func (n *Node) dropsOf(net *Network, t *nft.Table, live []netip.Addr) (drops []Finding) {
	family := nft.FamilyName(t.Family)
	if !net.routes() || t.Name == "filter" && family != "inet" && n.cut[net.Name] {
		return nil // iptablesDrops has reported it
	}
	index := 0
	if link, err := n.Host.Link(net.link()); err == nil {
		index = link.Attrs().Index
	}
	for _, base := range t.Chains {
		for _, traffic := range net.traffic(named(t, live)) {
			traffic.Index = index
			v6 := traffic.Net.Addr().Is6()
			wrong := family == "ip" && v6 || family == "ip6" && !v6 || frames(t, base)
			if wrong || !base.Base || base.Type != "filter" || !passes(base, traffic.Out) {
				continue
			}
			if f, does := judged(t, eval.DroppedBy(t, base, traffic), way(traffic)); does {
				drops = append(drops, f)
			}
		}
	}
	return drops
}

// judged makes a finding if a table drops something in one direction. If the drop may be
// intended, the finding is only a warning. That is so in three cases: an earlier rule may accept
// the traffic, the rule is in a chain for operators, or it drops connections from outside.
func judged(t *nft.Table, d eval.Drop, way string) (f Finding, found bool) {
	at, does := d.At, "drops"
	f.Level = Problem
	switch {
	case d.At == "" && d.Doubt == "":
		return f, false
	case d.At == "":
		at, does, f.Level = d.Doubt, "may drop what doctor cannot decide", Warning
	case d.Maybe:
		does, f.Level = "drops what nothing before it accepts", Warning
	case d.Begun:
		does = "drops what begins a connection"
	}
	if operators(at) || d.Begun && way == comesIn {
		f.Level = Warning
	}
	f.What = fmt.Sprintf("%s of %s %s, in the traffic %s", at, t, does, way)
	return f, true
}

// passes reports whether packets in a base chain have the addresses of the traffic. Before
// routing, answers may still be addressed to the host; after source NAT, outgoing packets have
// the host's address.
func passes(base nft.Chain, out bool) bool {
	return base.Hook == *nftables.ChainHookForward ||
		base.Hook == *nftables.ChainHookPrerouting && out ||
		base.Hook == *nftables.ChainHookPostrouting && (!out || base.Prio < int32(*nftables.ChainPriorityNATSource))
}

// operators reports whether a rule is in a chain that is meant for operators' rules.
func operators(at string) bool {
	return slices.ContainsFunc([]string{"CNI-ADMIN", "DOCKER-USER", "admin"}, func(name string) bool {
		return strings.Contains(at+" ", " chain "+name+" ") || strings.Contains(at, " chain "+name+",")
	})
}

const comesIn = "that comes in"

func way(t eval.Traffic) string {
	if t.Out {
		return "that leaves"
	}
	return comesIn
}

// traffic returns the traffic that the host forwards for a network, in both directions. It has
// an entry for each subnet, and one for each address in single.
func (n *Network) traffic(single []netip.Addr) (list []eval.Traffic) {
	link := n.link()
	nets := n.subnets()
	for _, a := range single {
		nets = append(nets, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, p := range nets {
		for _, out := range []bool{true, false} {
			list = append(list, eval.Traffic{Net: p, Link: link, Out: out})
		}
	}
	return list
}

// link returns the bridge through which the network's traffic comes, or "".
func (n *Network) link() (name string) {
	for i := range n.Members {
		if b := n.Members[i].bridge(); b != "" && n.Members[i].Vlan == 0 {
			name = b
		}
	}
	return name
}

// named returns the addresses that a rule of the table mentions. The rules treat all other
// addresses, maybe hundreds, like their subnet, so these need no separate entry.
func named(t *nft.Table, addrs []netip.Addr) (out []netip.Addr) {
	values := make(map[string]bool)
	for _, rules := range t.Rules {
		for _, r := range rules {
			for _, v := range r.Compared() {
				values[string(v)] = true
			}
		}
	}
	for _, a := range addrs {
		if values[string(a.AsSlice())] {
			out = append(out, a)
		}
	}
	return out
}

// forwardTables reads the tables that containers' traffic may pass. It leaves out the table of
// firewalld, because foreignDrops covers it. It also leaves out the tables nat of iptables, which
// drop nothing and are long on a node with kube-proxy.
func (n *Node) forwardTables() ([]*nft.Table, error) {
	return n.Kernel.NFT.ReadRunning(func(t *nft.Table) bool {
		ofIP := t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6
		return t.Name != "firewalld" && !(t.Name == "nat" && ofIP)
	})
}

// inetIngress is the number of the ingress hook in a table of family inet (linux/netfilter.h).
const inetIngress = 5

// frameDrops returns findings for frames of a network that a table drops, in chains of bridges or
// of devices. If there is a certain finding, frameDrops leaves out uncertain ones.
func frameDrops(net *Network, t *nft.Table, ports []string) (drops []Finding) {
	if t.Name == nft.TableName || len(ports) == 0 {
		return nil
	}
	for _, base := range t.Chains {
		if !base.Base || base.Type != "filter" || !frames(t, base) || !slices.ContainsFunc(ports, func(p string) bool { return ofDevice(t, base, p) }) {
			continue
		}
		var doubts []Finding
		for _, traffic := range net.traffic(nil) {
			if t.Family != nftables.TableFamilyBridge && traffic.Out == (base.Hook == 1) { // hook 1 of netdev is egress
				continue
			}
			traffic.Link, traffic.Ports = "", ports
			d := eval.DroppedBy(t, base, traffic)
			f, does := judged(t, d, way(traffic))
			switch {
			case does && d.At == "":
				doubts = append(doubts, f)
			case does:
				drops = append(drops, f)
			}
		}
		if len(drops) == 0 {
			drops = doubts
		}
	}
	return drops
}

// frames reports whether a base chain works on frames.
func frames(t *nft.Table, base nft.Chain) bool {
	return t.Family == nftables.TableFamilyBridge || t.Family == nftables.TableFamilyNetdev || t.Family == nftables.TableFamilyINet && base.Hook == inetIngress
}

// ofDevice reports whether the kernel runs a base chain for a link.
func ofDevice(t *nft.Table, base nft.Chain, link string) bool {
	return t.Family == nftables.TableFamilyBridge || slices.Contains(base.Devices, link)
}

// ports returns, for each network, the host's links of its attachments, and its bridge.
func (n *Node) ports() map[string][]string {
	out := make(map[string][]string)
	for _, r := range n.records() {
		out[r.Network] = append(out[r.Network], r.Links...)
	}
	for _, net := range n.Networks {
		if b := net.link(); b != "" {
			out[net.Name] = append(out[net.Name], b)
		}
	}
	return out
}
