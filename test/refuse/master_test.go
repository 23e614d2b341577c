// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
)

// stage makes what a configuration needs: the link that it names as master, or the device to
// move. If the kernel lacks the plugin's kind of link, stage skips the test.
func stage(t *testing.T, p *plugin.Plugin, conf map[string]any) {
	t.Helper()
	if name, ok := conf["master"].(string); ok {
		nettest.Need(t, nettest.LinkKind(p.Name))
		master(t, name)
	}
	if name, ok := conf["device"].(string); ok {
		master(t, name)
	}
	switch p.Name {
	case "dummy":
		nettest.Need(t, nettest.Dummy())
	case "tap":
		nettest.Need(t, nettest.Tun())
	}
	if p.Name == "dhcp" { // its example is attached to docs0
		dhcptest.LAN(t, "docs0", "10.66.0.1/24")
		dhcptest.Dnsmasq(t, "docs0", "--dhcp-range=10.66.0.10,10.66.0.20,255.255.255.0,2m")
		dhcptest.Serve(t, dhcprpc.DefaultSocket)
	}
	if p.Name == "vrf" {
		nettest.Need(t, nettest.LinkKind("vrf"))
	}
}

func master(t *testing.T, name string) {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: name + "-peer"}
	link.Name = name
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// TestMasters checks what is refused by plugins that put a link on top of another one.
func TestMasters(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	master(t, "refuse1")
	const on, ipam = `"master":"refuse1",`, `,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`
	common := []refusal{
		field("no such master", `"master":"nosuch"`+ipam, 7, `failed to lookup master "nosuch"`),
		field("a long master", `"master":"../../../../../../../x"`+ipam, 7, `failed to lookup master "../`),
		field("below zero", on+`"mtu":-1`+ipam, 7, "invalid MTU -1, must be [0, master MTU(1500)]"),
		field("IPAM type", on+`"ipam":{"type":"../../bin/sh"}`, 7, "invalid plugin name"),
		field("master in the container", on+`"linkInContainer":true`+ipam, 7, `failed to lookup master "refuse1"`),
		field("a list", `"master":["refuse1"]`+ipam, 6, "failed to load netconf"),
	}
	for name, table := range map[string][]refusal{
		"macvlan": {
			field("above the master's MTU", on+`"mtu":1501`+ipam, 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
			field("mode", on+`"mode":"l2"`, 7, `unknown macvlan mode: "l2"`),
			field("mac", on+`"mac":"$(id)"`, 7, "for MAC addr"),
			field("multicast mac", on+`"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`, 7, "for MAC addr"),
			field("queue", on+`"bcqueuelen":4294967296`, 6, "failed to load netconf"),
			field("no default route", `"mtu":0`+ipam, 7, "no default route interface found"),
			field("no default route inside", `"linkInContainer":true`+ipam, 7, "no default route interface found"),
		},
		"ipvlan": {
			field("mode", on+`"mode":"bridge"`+ipam, 7, `unknown ipvlan mode: "bridge"`),
			field("no addresses", on+`"mtu":0`, 7, "no plugin name provided"),
			field("two interfaces before", `"prevResult":`+prev, 7, "chained master failure. PrevResult lacks a single named interface"),
			field("no default route", `"mtu":0`+ipam, 7, "no default route interface found"),
		},
		"vlan": {
			field("no master", `"vlanId":5`+ipam, 7, `"master" field is required. It specifies the host interface name to create the VLAN for`),
			field("above the master's MTU", on+`"vlanId":5,"mtu":1501`+ipam, 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
			field("VLAN", on+`"vlanId":4095`+ipam, 7, "invalid VLAN ID 4095 (must be between 0 and 4094 inclusive)"),
			field("no IPAM", on+`"vlanId":5`, 7, "failed to execute IPAM delegate: no plugin name provided"),
		},
	} {
		t.Run(name, func(t *testing.T) { hold(t, name, ns, accepted(t, name), append(table, common...)) })
	}
}
