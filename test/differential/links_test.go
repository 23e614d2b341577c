// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import "github.com/patchbay-net/patchbay/internal/test/nettest"

var (
	master = field{at: "master", odds: 70, ok: of("uplink", "spare"), bad: of("nosuch0", "", 7)}
	within = field{at: "linkInContainer", odds: 15, ok: flag, bad: of("yes")}
	// childMTU is at most the master's.
	childMTU = field{at: "mtu", odds: 30, ok: of(0, 1280, 1400, 1500), bad: of(-1, 1501, "1500", 1.5)}
)

// onMaster lists the plugins whose interface is new, or is a device of the host.
var onMaster = []*subject{
	{plugin: "macvlan", prepare: everywhere, fields: with(names, macs, ipam(85), master, within, childMTU, []field{
		{at: "mode", ok: of("", "bridge", "private", "vepa", "passthru"), bad: of("x", 1)},
		{at: "mac", odds: 12, ok: of(mac2), bad: of("x", 1)},
		{at: "bcqueuelen", odds: 15, ok: of(0, 1000, 5000), bad: of(-1, "x")},
	})},
	{plugin: "ipvlan", prepare: everywhere, needs: kind("ipvlan"), fields: with(names, ipam(90), master, within, childMTU, []field{
		{at: "mode", ok: of("", "l2", "l3", "l3s"), bad: of("x", 1)},
	})},
	{plugin: "vlan", prepare: everywhere, needs: kind("vlan"), fields: with(names, ipam(90), master, within, childMTU, []field{
		{at: "vlanId", odds: 85, ok: of(1, 100, 4094, 0), bad: of(-1, 4095, "7")},
	})},
	{plugin: "host-device", prepare: everywhere, fields: with(names, ipam(80), []field{
		{at: "device", odds: 75, ok: of("spare"), bad: of("nosuch0", "", 7, "lo")},
		{at: "hwaddr", odds: 20, ok: of("02:00:00:00:01:02"), bad: of("02:00:00:00:99:99", "x", 1)},
		{at: "kernelpath", odds: 8, ok: of("/sys/devices/virtual/nothing"), bad: of("relative", "/etc", "/sys/devices/../../etc")},
		{at: "pciBusID", odds: 8, ok: of("0000:ff:1f.7"), bad: of("x", "../..", 1)},
		{at: "runtimeConfig.deviceID", odds: 5, ok: of("0000:ff:1f.7"), bad: of("../..", 1)},
	})},
	{plugin: "dummy", needs: []nettest.Feature{nettest.Dummy()}, fields: with(names, ipam(95))},
	{plugin: "tap", fields: with(names, macs, ipam(80), mtu, []field{
		{at: "multiQueue", odds: 25, ok: flag, bad: of("x")},
		{at: "mac", odds: 20, ok: of(mac2), bad: of("x", 1)},
		{at: "owner", odds: 90, ok: of(0, 1000), bad: of(-1, "x")},
		{at: "group", odds: 90, ok: of(0, 1000), bad: of(-1, "x")},
		{at: "bridge", odds: 5, ok: of("nosuch0"), bad: of(1)},
	})},
}

// moved lists the chained plugins that change the path of a container's traffic.
var moved = []*subject{
	{plugin: "sbr", prepare: attached, fields: with(previous, []field{
		{at: "table", odds: 25, ok: of(1000), bad: of("x", -1)},
	})},
	{plugin: "vrf", prepare: attached, needs: kind("vrf"), fields: with(previous, []field{
		{at: "vrfname", odds: 95, ok: of("blue", "fifteen-letters"), bad: of("", 1, "sixteen-letters-", "eth0", "lo")},
		{at: "table", odds: 40, ok: of(0, 1, 100, 254, 5000), bad: of(-1, "x", 1.5)},
	})},
}
