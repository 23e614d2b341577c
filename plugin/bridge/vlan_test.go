// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// vlans prints the VLANs of a link.
func vlans(w *endpointtest.World, link netlink.Link) string {
	w.Helper()
	all, err := w.HostConn().BridgeVlanList()
	endpointtest.Must(w, err)
	var words []string
	for _, v := range all[int32(link.Attrs().Index)] {
		s := fmt.Sprintf("%04d", v.Vid)
		if v.Flags&vnl.BRIDGE_VLAN_INFO_PVID != 0 {
			s += " pvid"
		}
		if v.Flags&vnl.BRIDGE_VLAN_INFO_UNTAGGED != 0 {
			s += " untagged"
		}
		words = append(words, s)
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func TestVLANs(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	for _, c := range []struct{ name, conf, want string }{
		{"vlan", `"vlan": 100`, "0100 pvid untagged"},
		{"keep", `"vlan": 100, "preserveDefaultVlan": true`, "0001 untagged, 0100 pvid untagged"},
		{"trunk", `"vlanTrunk": [{"minID": 10, "maxID": 12}, {"id": 20}]`, "0001 pvid untagged, 0010, 0011, 0012, 0020"},
		{"both", `"vlan": 100, "vlanTrunk": [{"id": 7}]`, "0007, 0100 pvid untagged"},
		{"all", `"vlan": 1, "vlanTrunk": [{"minID": 4093, "maxID": 4094}]`, "0001 pvid untagged, 4093, 4094"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("a", `"bridge": "tbr0", `+c.conf).Add()
			w.Want("vlans", vlans(w, port(w, p)), c.want)
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, w.HostConn().BridgeVlanDel(port(w, p), lastVLAN(c.want), false, false, false, true))
			w.Fails(p.Do(spec.Check), "lacks vlan")
		})
	}
}

func lastVLAN(list string) (id uint16) {
	words := strings.Split(list, ", ")
	if _, err := fmt.Sscanf(words[len(words)-1], "%d", &id); err != nil {
		panic(err)
	}
	return id
}

// Containers of one VLAN reach each other and their gateway, which is in the same VLAN.
// Containers of another VLAN reach neither.
func TestVLANTraffic(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	w := newWorld(t)
	conf := func(vlan, last int) string {
		return fmt.Sprintf(`"bridge": "tbr0", "isGateway": true, "vlan": %d, `, vlan) + endpointtest.Static(fmt.Sprintf("10.9.%d.%d/24", vlan, last))
	}
	a, b := w.Pod("a", conf(100, 5)).Add(), w.Pod("b", conf(100, 6)).Add()
	other := w.Pod("c", `"bridge": "tbr0", "vlan": 101, `+endpointtest.Static("10.9.100.7/24")).Add()
	w.Want("interface of the gateway", a.Result.Interfaces[atVLAN].Name, "tbr0.100")
	b.Serve("tcp", "10.9.100.6:80")
	w.Want("within the VLAN", a.Ask("tcp", "10.9.100.6:80"), "b 10.9.100.5")
	w.Want("gateway", w.Host.Ask("tcp", "10.9.100.6:80"), "b 10.9.100.1")
	if got := other.Ask("tcp", "10.9.100.6:80"); got == "b 10.9.100.7" {
		t.Error("another VLAN reaches the container")
	}
	w.Want("addresses of the gateway", addresses(w, "tbr0.100"), "10.9.100.1/24")
	w.Want("accept_ra of the gateway", w.Host.ReadSysctl("net/ipv6/conf/tbr0.100/accept_ra"), "0")
	endpointtest.Must(t, a.Do(spec.Check))
}

// The ADD that made a gateway's veth pair was killed before the pair was in the bridge.
func TestVLANGatewayHalfMade(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	w := newWorld(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tbr0.100"
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "half"}))
	p := w.Pod("a", `"bridge": "tbr0", "isGateway": true, "vlan": 100, `+endpointtest.Static("10.9.100.5/24")).Add()
	p.Serve("tcp", "10.9.100.5:80")
	w.Want("gateway", w.Host.Ask("tcp", "10.9.100.5:80"), "a 10.9.100.1")
	w.Want("vlans", vlans(w, w.HostLink("half")), "0100 pvid untagged")
}
