// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func newWorld(t *testing.T) *endpointtest.World {
	nettest.Need(t, nettest.LinkKind("vlan"))
	return endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
}

const five = `"master": "uplink", "vlanId": 5, `

// tagged gives the router an interface to VLAN 5 of the node's uplink.
func tagged(w *endpointtest.World) {
	conn := w.Router.Conn()
	under, err := conn.Link("tonode")
	endpointtest.Must(w, err)
	link := &netlink.Vlan{LinkAttrs: netlink.NewLinkAttrs(), VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	link.Name, link.ParentIndex = "five", under.Attrs().Index
	endpointtest.Must(w, conn.LinkAdd(link))
	w.Router.Address("five", "10.5.0.1/24", "fd05::1/64")
}

var static5 = endpointtest.Static("10.5.0.5/24 10.5.0.1", "fd05::5/64 fd05::1")

// The container is in the VLAN, with the master's Ethernet address. Neighbours have its old MAC,
// but reach it at once.
func TestTraffic(t *testing.T) {
	w := newWorld(t)
	tagged(w)
	w.Misled(w.Router, "five", "10.5.0.5", "fd05::5")
	p := w.Pod("a", five+static5).Add()
	w.AtOnce(w.Router, p, "10.5.0.1", "fd05::1")
	w.Router.Serve("tcp", "10.5.0.1:80")
	w.Want("container to the VLAN", p.Ask("tcp", "10.5.0.1:80"), "router 10.5.0.5")
	w.Want("mac", p.Result.Interfaces[0].Mac, w.HostLink("uplink").Attrs().HardwareAddr.String())
}

// A master has only one link in each VLAN. The error of a second ADD says so, and nothing is left.
func TestTaken(t *testing.T) {
	w := newWorld(t)
	first := w.Pod("a", five+static5).Add()
	second := w.Pod("b", five+endpointtest.Static("10.5.0.6/24"))
	second.Refused("failed to create vlan: file exists (uplink has a vlan id 5 already)")
	endpointtest.Must(t, second.Do(spec.Del))
	endpointtest.Must(t, first.Do(spec.Check))
	w.Pod("c", strings.Replace(five, "5", "0", 1)+endpointtest.Static("10.5.0.7/24")).Add() // VLAN 0 means priority tags
}

// If the master is down, its VLANs are down too.
func TestMasterDown(t *testing.T) {
	w := newWorld(t)
	endpointtest.Must(t, w.HostConn().LinkSetDown(w.Master("m0")))
	p := w.Pod("a", strings.Replace(five, "uplink", "m0", 1)+static5)
	p.Refused(`failed to set "eth0" UP: network is down`)
	if _, err := p.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Errorf("a failed ADD left eth0 (%v)", err)
	}
}

// CHECK compares VLAN and MTU.
func TestCheck(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", five+`"mtu": 1400, `+static5).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	other := *p
	other.Conf += `, "vlanId": 6` // of two equal keys the last one counts
	w.Fails(other.Do(spec.Check), "vlan: Interface eth0 has VLAN ID 5, configured is 6")
	endpointtest.Must(t, p.Conn().LinkSetMTU(p.Link("eth0"), 1300))
	w.Fails(p.Do(spec.Check), "vlan: Interface eth0 has MTU 1300, configured is 1400")
}
