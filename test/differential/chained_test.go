// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

// previous is a previous result that attached did not make.
var previous = field{at: "prevResult", odds: -1, ok: of(nil), bad: of("none", "none", "x", obj{}, obj{"cniVersion": "1.0.0", "interfaces": list{}, "ips": list{}})}

var chained = []*subject{
	{plugin: "tuning", prepare: attached, fields: with(previous, macs, mtu, []field{
		{at: "sysctl", ok: of(
			obj{"net.core.somaxconn": "500"}, obj{"net/ipv4/conf/IFNAME/arp_filter": "1", "net.ipv4.conf.IFNAME.arp_notify": "1"}, obj{"net.ipv4.ip_forward": "1"}, obj{"net.ipv6.conf.eth0.accept_ra": "0"}, obj{}),
			bad: of(obj{"kernel.shmmax": "1"}, obj{"net.none.such": "1"}, obj{"net/../kernel/pid_max": "1"}, obj{"net.core.somaxconn": "x"}, "x", obj{"net.core.somaxconn": 5}, obj{"": "1"})},
		{at: "mac", odds: 25, ok: of(mac2), bad: of("x", 1)},
		{at: "promisc", odds: 25, ok: flag, bad: of("x")},
		{at: "allmulti", odds: 25, ok: of(true, false), bad: of("x")},
		{at: "txQLen", odds: 25, ok: of(500, 1, 0), bad: of("x", -1)},
		{at: "args.cni.sysctl", odds: 8, ok: of(obj{"net.core.somaxconn": "700"})},
		{at: "args.cni.mtu", odds: 8, ok: of(1450)},
		{at: "args.cni.promisc", odds: 8, ok: of(true, false)},
		{at: "args.cni.allmulti", odds: 8, ok: of(true, false)},
		{at: "args.cni.txQLen", odds: 8, ok: of(600)},
		{at: "dataDir", odds: 10, ok: of("/run/cni/tuned")},
	})},
	{plugin: "bandwidth", prepare: attached, fields: with(previous, []field{
		{at: "ingressRate", odds: 60, ok: of(80000000, 1000000), bad: of(0, "x", -1, 1e30)},
		{at: "ingressBurst", odds: 60, ok: of(8000000, 2147483647), bad: of(0, "x", 4294967296*8)},
		{at: "egressRate", odds: 60, ok: of(80000000, 1000000), bad: of(0, 1.5)},
		{at: "egressBurst", odds: 60, ok: of(8000000, 2147483647), bad: of(0, "x", 4294967296*8)},
		{at: "runtimeConfig.bandwidth", odds: 30, ok: of(
			obj{"ingressRate": 50000000, "ingressBurst": 5000000}, obj{"egressRate": 50000000, "egressBurst": 5000000}, obj{"ingressRate": 50000000, "ingressBurst": 5000000, "egressRate": 60000000, "egressBurst": 6000000}, obj{}),
			bad: of(obj{"ingressRate": 1}, "x")},
	})},
	{plugin: "portmap", prepare: attached, needs: iptables, fields: with(previous, []field{
		{at: "runtimeConfig.portMappings", odds: 90, ok: of(
			list{obj{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
			list{obj{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, obj{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}},
			list{obj{"hostPort": 65535, "containerPort": 65535, "protocol": "sctp"}},
			list{obj{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "10.1.0.1"}},
			list{obj{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "fd00:1::1"}},
			list{obj{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}}, list{}),
			bad: of(list{obj{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}}, list{obj{"hostPort": 80, "containerPort": 0}}, list{obj{"hostPort": -5, "containerPort": 80}}, list{obj{"hostPort": "80", "containerPort": 80}}, "x",
				list{obj{"hostPort": 70000, "containerPort": 80, "protocol": "tcp"}}, list{obj{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}})},
		{at: "snat", odds: 30, ok: of(true, false), bad: of("x")},
		{at: "masqAll", odds: 20, ok: of(true, false), bad: of("x")},
		{at: "markMasqBit", odds: 15, ok: of(0, 13, 31), bad: of(32, -1, "x")},
		{at: "externalSetMarkChain", odds: 8, ok: of("KUBE-MARK-MASQ"), bad: of(1)},
		{at: "conditionsV4", odds: 8, ok: of(list{"!", "-d", "192.0.2.0/24"}), bad: of("x")},
		{at: "conditionsV6", odds: 8, ok: of(list{"!", "-d", "2001:db8::/32"}), bad: of("x")},
		{at: "backend", odds: 20, ok: of("iptables", "nftables"), bad: of("ebpf", 1)},
	})},
	{plugin: "firewall", prepare: attached, needs: iptables, fields: with(previous, []field{
		{at: "backend", odds: 30, ok: of("iptables", "", "other"), bad: of(1)},
		{at: "iptablesAdminChainName", odds: 20, ok: of("MY-ADMIN"), bad: of(1)},
		{at: "firewalldZone", odds: 10, ok: of("trusted"), bad: of(1)},
		{at: "ingressPolicy", odds: 30, ok: of("", "open", "same-bridge", "isolated"), bad: of("x", 1)},
	})},
}
