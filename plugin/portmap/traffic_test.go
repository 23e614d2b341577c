// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const both = webPort + `, {"hostPort": 8080, "containerPort": 80, "protocol": "UDP"}`

// A client uses every way to a published port. The container sees the client's address unless the
// answer would be lost.
func TestTraffic(t *testing.T) {
	for _, brNetfilter := range []bool{false, true} {
		t.Run(map[bool]string{false: "bridge", true: "br_netfilter"}[brNetfilter], func(t *testing.T) {
			n, web, other := world(t)
			n.BridgeNetfilter(brNetfilter)
			a := of(web)
			a.must(t, spec.Add, ports(both))
			t.Cleanup(func() { a.must(t, spec.Del, "{}") })
			a.must(t, spec.Check, ports(both))
			for _, network := range []string{"tcp", "udp"} {
				expect(t, "outside", n.Client, network, node.Uplink4+":8080", "web "+node.Client4)
				expect(t, "outside, IPv6", n.Client, network, "["+node.Uplink6+"]:8080", "web "+node.Client6)
				expect(t, "host by its own address", n.Host, network, node.Uplink4+":8080", "web "+node.Uplink4)
				expect(t, "host by 127.0.0.1", n.Host, network, "127.0.0.1:8080", "web 10.1.0.1")
				expect(t, "host by 127.1.2.3", n.Host, network, "127.1.2.3:8080", "web 10.1.0.1")
				expect(t, "hairpin", web.Space, network, "10.1.0.1:8080", "web 10.1.0.1")
				expect(t, "hairpin, IPv6", web.Space, network, "[fd00:1::1]:8080", "web fd00:1::1")
				expect(t, "hairpin by the uplink", web.Space, network, node.Uplink4+":8080", "web 10.1.0.1")
				expect(t, "neighbour", other.Space, network, "10.1.0.1:8080", "web 10.1.0.1")
				expect(t, "neighbour, IPv6", other.Space, network, "["+node.Uplink6+"]:8080", "web fd00:1::1")
				expect(t, "container itself", other.Space, network, "10.1.0.5:80", "web 10.1.0.6")
			}
			// route_localnet lets no other machine reach services on the loopback address.
			n.Host.Serve("tcp", "127.0.0.1:9999")
			expect(t, "loopback service from the host", n.Host, "tcp", "127.0.0.1:9999", "host 127.0.0.1")
			other.LocalnetVia("eth0", "10.1.0.1")
			expect(t, "loopback service from a container (CVE-2020-8558)", other.Space, "tcp", "127.0.0.1:9999", "timeout")
		})
	}
}

// A container on another network of the host is a client like any other. It uses each address of
// the host, and keeps its own address.
func TestOtherNetwork(t *testing.T) {
	n, web, _ := world(t)
	far := n.Bridge("cni1", "10.2.0.1/24", "fd00:2::1/64").Container("far", "10.2.0.5/24", "fd00:2::5/64")
	a := of(web)
	a.must(t, spec.Add, ports(both))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	for _, addr := range []string{node.Uplink4, "10.1.0.1", "10.2.0.1"} {
		expect(t, "another network, by "+addr, far.Space, "tcp", addr+":8080", "web 10.2.0.5")
	}
	for _, addr := range []string{node.Uplink6, "fd00:1::1", "fd00:2::1"} {
		expect(t, "another network, by "+addr, far.Space, "udp", "["+addr+"]:8080", "web fd00:2::5")
	}
}

// A container whose address has the full prefix length reaches itself through its published port.
// The addresses of other clients are kept.
func TestSingleAddress(t *testing.T) {
	n, web, _ := world(t)
	n.BridgeNetfilter(false)
	a := of(web)
	for i := range a.prev.IPs {
		addr := a.prev.IPs[i].Address.Addr()
		a.prev.IPs[i].Address = netip.PrefixFrom(addr, addr.BitLen())
	}
	a.must(t, spec.Add, ports(both))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	a.must(t, spec.Check, ports(both))
	for _, network := range []string{"tcp", "udp"} {
		expect(t, "outside", n.Client, network, node.Uplink4+":8080", "web "+node.Client4)
		expect(t, "outside, IPv6", n.Client, network, "["+node.Uplink6+"]:8080", "web "+node.Client6)
		expect(t, "host by 127.0.0.1", n.Host, network, "127.0.0.1:8080", "web 10.1.0.1")
		expect(t, "hairpin", web.Space, network, "10.1.0.1:8080", "web 10.1.0.1")
		expect(t, "hairpin, IPv6", web.Space, network, "["+node.Uplink6+"]:8080", "web fd00:1::1")
	}
}

// The kernel drops answers to ::1. A client is not sent to the container and left waiting:
// it gets a refusal at once, or reaches the host's own server.
func TestLoopback6(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	a.must(t, spec.Add, ports(both))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	expect(t, "host by ::1", n.Host, "tcp", "[::1]:8080", "refused")
	n.Host.Serve("tcp", "[::1]:8080")
	expect(t, "host's own server on ::1", n.Host, "tcp", "[::1]:8080", "host ::1")
}

func TestSNATOff(t *testing.T) {
	n, web, other := world(t)
	n.BridgeNetfilter(false)
	a := of(web)
	a.must(t, spec.Add, ports(both, `"snat": false`))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	expect(t, "outside", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
	expect(t, "hairpin", web.Space, "tcp", "10.1.0.1:8080", "timeout")
	expect(t, "neighbour", other.Space, "tcp", "10.1.0.1:8080", "timeout")
	expect(t, "host by 127.0.0.1", n.Host, "tcp", "127.0.0.1:8080", "timeout")
	if v := n.Host.ReadSysctl("net/ipv4/conf/cni0/route_localnet"); v != "0" {
		t.Errorf("route_localnet is %s without snat", v)
	}
}

func TestMasqAll(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	a.must(t, spec.Add, ports(both, `"masqAll": true`))
	t.Cleanup(func() { a.must(t, spec.Del, "{}") })
	expect(t, "outside", n.Client, "tcp", node.Uplink4+":8080", "web 10.1.0.1")
	expect(t, "outside, IPv6", n.Client, "udp", "["+node.Uplink6+"]:8080", "web fd00:1::1")
	expect(t, "not by a published port", web.Space, "tcp", "10.1.0.5:80", "web 10.1.0.5")
}

// A mapping for one host address comes before a mapping for all, in whatever order they were
// published.
func TestHostIP(t *testing.T) {
	n, web, other := world(t)
	all, one := of(web), of(other)
	all.must(t, spec.Add, ports(webPort))
	one.must(t, spec.Add, ports(`{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"},
		{"hostPort": 8080, "containerPort": 80, "hostIP": "::ffff:127.0.0.1"}, {"hostPort": 81, "containerPort": 80, "hostIP": "0.0.0.0"},
		{"hostPort": 82, "containerPort": 80, "hostIP": "::"}`))
	t.Cleanup(func() { all.must(t, spec.Del, "{}") })
	expect(t, "the address", n.Client, "tcp", node.Uplink4+":8080", "other "+node.Client4)
	expect(t, "127.0.0.1", n.Host, "tcp", "127.0.0.1:8080", "other 10.1.0.1")
	expect(t, "IPv6", n.Client, "tcp", "["+node.Uplink6+"]:8080", "web "+node.Client6)
	expect(t, "0.0.0.0", n.Client, "tcp", node.Uplink4+":81", "other "+node.Client4)
	expect(t, "0.0.0.0 is not IPv6", n.Client, "tcp", "["+node.Uplink6+"]:81", "refused")
	n.Router.LocalnetVia("tonode", node.Uplink4)
	expect(t, "127.0.0.1 from another machine", n.Router, "tcp", "127.0.0.1:8080", "timeout")
	expect(t, ":: is IPv6", n.Client, "tcp", "["+node.Uplink6+"]:82", "other "+node.Client6)
	expect(t, ":: is not IPv4", n.Client, "tcp", node.Uplink4+":82", "refused")
	one.must(t, spec.Del, "{}")
	expect(t, "the address, free again", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
}

// Conditions limit only the ports of their own network.
func TestConditions(t *testing.T) {
	n, web, other := world(t)
	limited, free := of(web), of(other)
	limited.network = "limited"
	conf := ports(both, `"conditionsV4": ["ip", "saddr", "!=", "198.51.100.0/24"]`, `"conditionsV6": ["ip6", "saddr", "2001:db8:2::/64"]`)
	limited.must(t, spec.Add, conf)
	limited.must(t, spec.Check, conf)
	free.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
	expect(t, "refused by the condition", n.Client, "tcp", node.Uplink4+":8080", "refused")
	expect(t, "met", n.Router, "tcp", node.Uplink4+":8080", "web 192.0.2.2")
	expect(t, "IPv6, met", n.Client, "tcp", "["+node.Uplink6+"]:8080", "web "+node.Client6)
	expect(t, "IPv6, refused", n.Router, "tcp", "["+node.Uplink6+"]:8080", "refused")
	expect(t, "another network", n.Client, "tcp", node.Uplink4+":81", "other "+node.Client4)
	limited.must(t, spec.Del, "{}")
	free.must(t, spec.Del, "{}")
	if left := nftTool(t, "list", "table", "inet", "patchbay"); len(left) == 0 || containsAny(left, "cond_", "ports4_") {
		t.Errorf("conditions are left: %s", left)
	}
}

// Conditions with the extensions multiport and iprange of iptables.
func TestConditionsOfExtensions(t *testing.T) {
	n, web, _ := world(t)
	limited := of(web)
	conf := ports(webPort+`, {"hostPort": 82, "containerPort": 80}`,
		`"conditionsV4": ["-p", "tcp", "-m", "multiport", "!", "--dports", "82,90:99", "-m", "iprange", "!", "--src-range", "198.51.100.1-198.51.100.9"]`)
	limited.must(t, spec.Add, conf)
	limited.must(t, spec.Check, conf)
	expect(t, "refused by iprange", n.Client, "tcp", node.Uplink4+":8080", "refused")
	expect(t, "met", n.Router, "tcp", node.Uplink4+":8080", "web 192.0.2.2")
	expect(t, "refused by multiport", n.Router, "tcp", node.Uplink4+":82", "refused")
	limited.must(t, spec.Del, "{}")
}

// kube-proxy and Docker translate first (dstnat), and we do not masquerade what they translate. A
// Service between two containers of a subnet keeps its client's address, even to a container with
// published ports.
func TestBesideOthers(t *testing.T) {
	n, web, other := world(t)
	n.BridgeNetfilter(true)
	a := of(web)
	a.must(t, spec.Add, ports(webPort+`, {"hostPort": 80, "containerPort": 80}`))
	t.Cleanup(func() { a.del(t); nftTool(t, "delete", "table", "ip", "others") })
	nftTool(t, `add table ip others; add chain ip others pre { type nat hook prerouting priority dstnat; };`+
		`add rule ip others pre ip daddr 10.96.0.1 tcp dport 8081 dnat to 10.1.0.5:80;`+
		`add rule ip others pre fib daddr type local tcp dport 80 dnat to 10.1.0.6:80`)
	expect(t, "Service", other.Space, "tcp", "10.96.0.1:8081", "web 10.1.0.6")
	expect(t, "another's port", n.Client, "tcp", node.Uplink4+":80", "other "+node.Client4)
	expect(t, "ours", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
}
