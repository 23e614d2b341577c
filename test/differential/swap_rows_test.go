// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// swapRow is one network. Its plugins are replaced while containers are attached.
type swapRow struct {
	name    string
	plugins string // the list's members, as JSON
	ports   bool   // the runtime publishes a port
	alone   bool   // one attachment at a time, because there is only one device
	newer   bool   // Debian's v1.1.1 has no such plugin or backend
	again   bool   // another row has the same plugin
	// stuck means that v1.1.1 fails to delete a rule that jumps to a missing chain. Ours never made
	// that chain, and iptables has another text for that error by now.
	stuck   bool
	needs   []nettest.Feature
	prepare func(w *world) error // called before each ADD; keeps what exists
}

const (
	swapIPAM   = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/28"}],[{"subnet":"fd00:1::/120"}]],"routes":[{"dst":"0.0.0.0/0"}]}`
	swapBridge = `{"type":"bridge","bridge":"br0","isGateway":true,` + swapIPAM + `}`
)

var (
	nft   = []nettest.Feature{nettest.Program("nft")}
	vlans = []nettest.Feature{nettest.VLANFiltering()}
)

func kind(name string) []nettest.Feature { return []nettest.Feature{nettest.LinkKind(name)} }

// masters makes uplink and spare on the host.
func masters(w *world) error {
	if _, err := netlink.LinkByName("uplink"); err == nil {
		return nil
	}
	_, err := uplinked(w)
	return err
}

// device makes the link that host-device moves. The kernel deletes it some time after its
// namespace.
func device(*world) error {
	if _, err := netlink.LinkByName("spare"); err == nil {
		return nil
	}
	for range 6000 {
		if _, err := netlink.LinkByName("spare-peer"); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return pair("spare", "02:00:00:00:01:02")
}

var swapRows = []swapRow{
	{name: "bridge", plugins: swapBridge},
	{name: "bridge, masquerade by iptables", again: true, needs: iptables, stuck: true,
		plugins: `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables",` + swapIPAM + `}`},
	{name: "bridge, masquerade by nftables", needs: nft, newer: true,
		plugins: `{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables",` + swapIPAM + `}`},
	{name: "bridge, MAC check", again: true, needs: nft, newer: true, plugins: `{"type":"bridge","bridge":"br0","isGateway":true,"macspoofchk":true,` + swapIPAM + `}`},
	{name: "bridge, VLAN", needs: vlans, plugins: `{"type":"bridge","bridge":"br0","vlan":7,` + swapIPAM + `}`},
	{name: "bridge, layer 2", again: true, plugins: `{"type":"bridge","bridge":"br0"}`},
	{name: "ptp", plugins: `{"type":"ptp",` + swapIPAM + `}`},
	{name: "ptp, masquerade by iptables", again: true, needs: iptables, stuck: true, plugins: `{"type":"ptp","ipMasq":true,` + swapIPAM + `}`},
	{name: "ptp, masquerade by nftables", again: true, needs: nft, newer: true, plugins: `{"type":"ptp","ipMasq":true,"ipMasqBackend":"nftables",` + swapIPAM + `}`},
	{name: "loopback", plugins: `{"type":"loopback"}`},
	{name: "static", alone: true, plugins: `{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}`},
	{name: "portmap by iptables", needs: iptables, ports: true, plugins: swapBridge + `,{"type":"portmap","capabilities":{"portMappings":true}}`},
	{name: "portmap by nftables", again: true, needs: nft, ports: true, newer: true, plugins: swapBridge + `,{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}`},
	{name: "firewall", needs: iptables, plugins: swapBridge + `,{"type":"firewall","backend":"iptables"}`},
	{name: "firewall, one bridge", again: true, needs: iptables, plugins: swapBridge + `,{"type":"firewall","backend":"iptables","ingressPolicy":"same-bridge"}`},
	{name: "bandwidth", plugins: swapBridge + `,{"type":"bandwidth","ingressRate":80000000,"ingressBurst":8000000,"egressRate":80000000,"egressBurst":8000000}`},
	{name: "tuning", plugins: swapBridge + `,{"type":"tuning","mac":"c2:b0:57:49:47:f1","mtu":1400,"promisc":true,"sysctl":{"net.core.somaxconn":"512"}}`},
	{name: "macvlan", prepare: masters, plugins: `{"type":"macvlan","master":"uplink",` + swapIPAM + `}`},
	{name: "ipvlan", prepare: masters, needs: kind("ipvlan"), plugins: `{"type":"ipvlan","master":"uplink",` + swapIPAM + `}`},
	{name: "vlan", prepare: masters, needs: kind("vlan"), alone: true, plugins: `{"type":"vlan","master":"uplink","vlanId":7,` + swapIPAM + `}`},
	{name: "host-device", prepare: device, alone: true, plugins: `{"type":"host-device","device":"spare",` + swapIPAM + `}`},
	{name: "dummy", newer: true, needs: []nettest.Feature{nettest.Dummy()}, plugins: `{"type":"dummy",` + swapIPAM + `}`},
	{name: "tap", newer: true, plugins: `{"type":"tap",` + swapIPAM + `}`},
	{name: "sbr", plugins: swapBridge + `,{"type":"sbr"}`},
	// The row has no routes: v1.1.1 loses them, and CHECK would report that.
	{name: "vrf", needs: kind("vrf"), plugins: `{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","subnet":"10.1.0.0/28"}},{"type":"vrf","vrfname":"blue"}`},
}
