// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import "math/rand/v2"

// obj and list keep the tables readable.
type (
	obj  = map[string]any
	list = []any
)

// versions are the versions for the cases, with the newest most often.
var versions = field{at: "cniVersion", odds: 97,
	ok:  of("1.1.0", "1.1.0", "1.1.0", "1.0.0", "1.0.0", "0.4.0", "0.4.0", "0.3.1", "0.3.0", "0.2.0", "0.1.0"),
	bad: of("9.9.9", "x", "", 1)}

var ifnames = field{at: "@ifname", odds: 10, ok: of("net1", "e", "fifteen-letters"), bad: of("", ".", "a/b", "sixteen-letters-", "a b")}

const (
	mac1 = "c2:b0:57:49:47:f1"
	mac2 = "02:00:00:12:34:56"
)

var arguments = field{at: "@args", odds: 15,
	ok:  of("IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n", "IgnoreUnknown=true;FOO=bar", "IgnoreUnknown=1;MAC="+mac1),
	bad: of("FOO=bar", "FOO", "IgnoreUnknown=maybe", "MAC=zz;IgnoreUnknown=1")}

var names = []field{
	{at: "dns", odds: 15, ok: of(
		obj{"nameservers": list{"192.0.2.53"}}, obj{"domain": "example.org", "search": list{"a.example", "b.example"}, "options": list{"ndots:2"}},
		obj{"nameservers": list{}}, obj{}), bad: of("x", list{"192.0.2.53"})},
}

var macs = []field{
	{at: "runtimeConfig.mac", odds: 12, ok: of(mac1, "C2:B0:57:49:47:F2"), bad: of("zz", mac1+":00", "ff:ff:ff:ff:ff:ff", "")},
	{at: "args.cni.mac", odds: 8, ok: of(mac2), bad: of("nonsense", 7)},
}

// addressing draws the ipam sections that give main plugins addresses.
var addressing = of(
	obj{"type": "host-local", "subnet": "10.1.0.0/16"},
	obj{"type": "host-local", "ranges": list{list{obj{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20", "gateway": "10.1.0.254"}}}, "routes": list{obj{"dst": "0.0.0.0/0"}}},
	obj{"type": "host-local", "ranges": list{list{obj{"subnet": "10.1.0.0/16"}}, list{obj{"subnet": "fd00:1::/64"}}}, "routes": list{obj{"dst": "0.0.0.0/0"}, obj{"dst": "::/0"}}},
	obj{"type": "host-local", "subnet": "fd00:1::/64", "routes": list{obj{"dst": "::/0", "gw": "fd00:1::9"}, obj{"dst": "2001:db8::/32"}}},
	obj{"type": "host-local", "subnet": "10.1.0.0/16", "routes": list{obj{"dst": "198.51.100.0/24", "gw": "10.1.0.9", "priority": 77}, obj{"dst": "203.0.113.0/24", "table": 5000}, obj{"dst": "192.0.2.0/24", "scope": 253}}},
	obj{"type": "static", "addresses": list{obj{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}}},
	obj{"type": "static", "addresses": list{obj{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, obj{"address": "10.1.0.6/24", "gateway": "10.1.0.1"}, obj{"address": "fd00:1::5/64", "gateway": "fd00:1::1"}},
		"routes": list{obj{"dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200}}, "dns": obj{"nameservers": list{"10.1.0.53"}, "search": list{"ipam.example"}}},
	obj{"type": "static", "addresses": list{obj{"address": "10.1.0.5/32", "gateway": "10.1.0.1"}}, "routes": list{obj{"dst": "10.9.0.0/16"}}},
	obj{"type": "static", "addresses": list{obj{"address": "10.1.0.5/24"}}},
)

// noAddressing draws ipam sections that give no addresses, or not the requested ones.
var noAddressing = of(
	obj{"type": "host-local"}, obj{"type": "host-local", "subnet": "10.1.0.0/31"}, obj{"type": "host-local", "subnet": "fd00:1::/64", "routes": list{obj{"dst": "x"}}},
	obj{"type": "static"}, obj{"type": "missing"}, obj{"type": ""}, obj{}, "x",
	obj{"type": "static", "addresses": list{obj{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}}, "routes": list{obj{"dst": "0.0.0.0/0", "gw": "203.0.113.1"}}},
)

func ipam(odds int) field {
	return field{at: "ipam", odds: odds, ok: addressing, bad: noAddressing}
}

// with joins tables of fields.
func with(lists ...any) []field {
	out := []field{versions, ifnames, arguments}
	for _, l := range lists {
		switch l := l.(type) {
		case field:
			out = append(out, l)
		case []field:
			out = append(out, l...)
		}
	}
	return out
}

var mtu = field{at: "mtu", odds: 25, ok: of(0, 1280, 1400, 1500, 9000, 68), bad: of(-1, "1500", 1e9, 1.5, 67)}

var subjects = []*subject{
	{plugin: "bridge", fields: with(names, macs, ipam(85), mtu, []field{
		{at: "bridge", ok: of("br0", "cni0", "fifteen-bridges"), bad: of("", "lo", "a/b", "sixteen-bridges-", 7)},
		{at: "isGateway", ok: flag, bad: of("true", 1)},
		{at: "isDefaultGateway", odds: 30, ok: flag, bad: of("no")},
		{at: "forceAddress", odds: 20, ok: flag, bad: of(0)},
		{at: "ipMasq", odds: 20, ok: flag, bad: of("yes")},
		{at: "ipMasqBackend", odds: 10, ok: of("iptables", "nftables"), bad: of("ebpf", 1)},
		{at: "hairpinMode", odds: 20, ok: flag, bad: of("x")},
		{at: "promiscMode", odds: 10, ok: flag, bad: of("x")},
		{at: "macspoofchk", odds: 10, ok: flag, bad: of("x")},
		{at: "enabledad", odds: 3, ok: flag, bad: of("x")},
		{at: "portIsolation", odds: 15, ok: flag, bad: of("x")},
		{at: "preserveDefaultVlan", odds: 10, ok: flag, bad: of("x")},
		{at: "disableContainerInterface", odds: 6, ok: flag, bad: of("x")},
	})},
	{plugin: "bridge", title: "bridge-layer2", fields: with(macs, mtu, ipam(8), []field{
		{at: "isGateway", odds: 50, ok: flag, bad: of("x")},
		{at: "isDefaultGateway", odds: 20, ok: flag, bad: of("x")},
		{at: "disableContainerInterface", odds: 75, ok: flag, bad: of("x")},
		{at: "hairpinMode", odds: 20, ok: flag, bad: of("x")},
		{at: "portIsolation", odds: 20, ok: flag, bad: of("x")},
	})},
	{plugin: "bridge", title: "bridge-vlan", needs: vlans, fields: with(ipam(70), []field{
		{at: "vlan", odds: 60, ok: of(0, 1, 7, 4094), bad: of(-1, 4095, "7")},
		{at: "vlanTrunk", odds: 50, ok: of(list{obj{"id": 9}}, list{obj{"minID": 20, "maxID": 24}, obj{"id": 30}}, list{obj{"minID": 5, "maxID": 5}}, list{}),
			bad: of(list{obj{"id": 0}}, list{obj{"id": 4095}}, list{obj{"minID": 9, "maxID": 3}}, list{obj{"minID": 9}}, list{obj{"maxID": 9}}, list{obj{}}, "x")},
		{at: "preserveDefaultVlan", odds: 30, ok: flag, bad: of("x")},
		{at: "isGateway", odds: 30, ok: flag, bad: of("x")},
	})},
	{plugin: "ptp", fields: with(names, ipam(97), mtu, []field{
		{at: "ipMasq", odds: 25, ok: flag, bad: of("yes")},
		{at: "ipMasqBackend", odds: 10, ok: of("iptables", "nftables"), bad: of("ebpf", 1)},
	})},
	{plugin: "loopback", fields: with(names, field{at: "prevResult", odds: 20, ok: of(obj{"cniVersion": "1.0.0", "interfaces": list{obj{"name": "lo"}}}), bad: of("x", obj{"cniVersion": "9.9.9"})})},
	{plugin: "host-local", fields: with(hostLocal)},
	{plugin: "static", fields: with(static)},
}

var subnet = of("10.1.0.0/16", "10.1.2.0/24", "192.168.7.0/30", "fd00:1::/64", "fd00:2::/126", "10.1.2.128/29")

// rangeSet draws a list of ranges of one family.
func rangeSet(r *rand.Rand) any {
	if r.IntN(2) == 0 {
		return list{obj{"subnet": "10.3.0.0/24", "rangeStart": "10.3.0.250"}, obj{"subnet": "10.4.0.0/29", "gateway": "10.4.0.6"}}
	}
	return list{obj{"subnet": "fd00:3::/112", "rangeStart": "fd00:3::fff0", "rangeEnd": "fd00:3::ffff"}}
}

var hostLocal = []field{
	{at: "ipam.type", odds: 100, ok: of("host-local"), bad: of("other", "", 1)},
	{at: "ipam.subnet", odds: 75, ok: subnet, bad: of("10.1.0.0/31", "10.1.0.5/24", "10.1.0.0", "x", "", 1, "10.0.0.0/32", "fd00::/128")},
	{at: "ipam.rangeStart", odds: 15, ok: of("10.1.2.130", "10.1.2.10"), bad: of("10.200.0.1", "x", "fd00::1", "10.1.2.255", 1)},
	{at: "ipam.rangeEnd", odds: 15, ok: of("10.1.2.133", "10.1.2.134"), bad: of("10.200.0.1", "x", "10.1.2.1", "10.1.2.0")},
	{at: "ipam.gateway", odds: 15, ok: of("10.1.2.129", "10.1.0.1", "10.1.2.1"), bad: of("10.200.0.1", "x", "fd00::1")},
	{at: "ipam.ranges", odds: 30, ok: of(list{gen(rangeSet)(rand.New(rand.NewPCG(1, 1)))}, list{list{obj{"subnet": "fd00:9::/64"}}}, list{list{obj{"subnet": "10.9.0.0/24"}}, list{obj{"subnet": "fd00:9::/64"}}},
		list{list{obj{"subnet": "10.3.0.0/24", "rangeStart": "10.3.0.250"}, obj{"subnet": "10.4.0.0/29", "gateway": "10.4.0.6"}}}),
		bad: of(list{}, list{list{}}, list{list{obj{}}}, list{list{obj{"subnet": "10.9.0.0/24"}, obj{"subnet": "fd00::/64"}}}, list{list{obj{"subnet": "10.9.0.0/24"}, obj{"subnet": "10.9.0.0/16"}}},
			list{list{obj{"subnet": "10.1.0.0/16"}}, list{obj{"subnet": "10.1.2.0/24"}}}, "x", list{obj{"subnet": "10.9.0.0/24"}})},
	{at: "ipam.routes", odds: 25, ok: of(list{obj{"dst": "0.0.0.0/0"}}, list{obj{"dst": "0.0.0.0/0", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 9, "scope": 0}, obj{"dst": "::/0"}}, list{}),
		bad: of(list{obj{"dst": "x"}}, list{obj{"dst": "10.0.0.0"}}, "x", list{obj{}}, list{obj{"dst": "10.0.0.0/8", "gw": "x"}})},
	{at: "ipam.resolvConf", odds: 10, ok: of("/etc/resolv.conf"), bad: of("/nonexistent", "/etc", 1)},
	{at: "ipam.dataDir", odds: 10, ok: of("/run/cni/elsewhere", "/run/cni/a/b"), bad: of("/proc/version", 1)},
	{at: "runtimeConfig.ips", odds: 8, ok: of(list{"10.1.2.131"}, list{"10.1.2.131/24"}), bad: of(list{"x"}, list{"10.250.0.1"}, list{"10.1.2.131", "10.1.2.132"}, "10.1.2.131", list{"10.1.2.1"})},
	{at: "runtimeConfig.ipRanges", odds: 8, ok: of(list{list{obj{"subnet": "10.77.0.0/24"}}}, list{}), bad: of(list{list{}}, "x")},
	{at: "args.cni.ips", odds: 6, ok: of(list{"10.1.2.131"}), bad: of(list{"10.1.2"}, 4)},
	{at: "@args", odds: 8, ok: of("IP=10.1.2.131", "IgnoreUnknown=1;IP=10.1.2.132"), bad: of("IP=x", "IP=", "IP=10.250.0.1", "ip=10.1.2.3")},
}

var static = []field{
	{at: "ipam.type", odds: 100, ok: of("static")},
	{at: "ipam.addresses", odds: 85, ok: of(
		list{obj{"address": "10.1.0.5/24"}}, list{obj{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}}, list{obj{"address": "fd00:1::5/64", "gateway": "fd00:1::1"}, obj{"address": "10.1.0.5/32"}},
		list{obj{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, obj{"address": "10.1.0.6/24"}}, list{}),
		bad: of(list{obj{"address": "10.1.0.5"}}, list{obj{"address": "x/24"}}, list{obj{"gateway": "10.1.0.1"}}, "x", list{obj{"address": "10.1.0.5/24", "gateway": "x"}}, list{obj{"address": "10.1.0.5/33"}}, list{1},
			list{obj{"address": "10.1.0.5/24"}, obj{"address": "10.1.0.5/24"}})},
	{at: "ipam.routes", odds: 30, ok: of(list{obj{"dst": "0.0.0.0/0"}}, list{obj{"dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 9, "scope": 253}}),
		bad: of(list{obj{"dst": "x"}}, list{obj{"gw": "10.1.0.1"}}, "x")},
	{at: "ipam.dns", odds: 25, ok: of(obj{"nameservers": list{"192.0.2.53"}, "domain": "d", "search": list{"s"}, "options": list{"o"}}, obj{}), bad: of("x", obj{"nameservers": "192.0.2.53"})},
	{at: "runtimeConfig.ips", odds: 15, ok: of(list{"10.2.0.5/24"}, list{"10.2.0.5/24", "fd00:2::5/64"}, list{}), bad: of(list{"10.2.0.5"}, list{"x"}, "x")},
	{at: "args.cni.ips", odds: 10, ok: of(list{"10.3.0.5/24"}), bad: of(list{"10.3.0.5"}, list{""})},
	{at: "@args", odds: 15, ok: of("IP=10.4.0.5/24", "IP=10.4.0.5/24,fd00:4::5/64;GATEWAY=10.4.0.1,fd00:4::1", "IgnoreUnknown=1;IP=10.4.0.6/24"),
		bad: of("IP=10.4.0.5", "GATEWAY=x", "IP=", "IP=10.4.0.5/24,", "ip=10.4.0.5/24")},
}
