// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func newWorld(t *testing.T) *endpointtest.World {
	return endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
}

// at returns the configuration of a container on the node's uplink. n is the last byte of the
// address.
func at(n int, more string) string {
	return fmt.Sprintf(`%s"ipam": {"type": "static", "addresses": [
		{"address": "192.0.2.%d/24", "gateway": "192.0.2.2"}, {"address": "2001:db8:1::%d/64", "gateway": "2001:db8:1::2"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`, more, n, n)
}

// Containers on the link of the default route reach each other and the outside. The outside
// reaches them too, under their own addresses.
func TestTraffic(t *testing.T) {
	w := newWorld(t)
	a, b := w.Pod("a", at(50, "")).Add(), w.Pod("b", at(51, "")).Add()
	for n, outside := range []string{node.Client4, node.Client6} {
		for _, network := range []string{"tcp", "udp"} {
			b.Serve(network, endpointtest.Join(b.IP(n), "80"))
			w.Client.Serve(network, endpointtest.Join(outside, "80"))
			w.Want("container to container", a.Ask(network, endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
			w.Want("container to the outside", a.Ask(network, endpointtest.Join(outside, "80")), "client "+a.IP(n))
			w.Want("the outside to container", w.Client.Ask(network, endpointtest.Join(b.IP(n), "80")), "b "+outside)
		}
	}
}

// Containers on one master reach each other without the switch's help only in mode bridge.
func TestModes(t *testing.T) {
	w := newWorld(t)
	for mode, want := range map[string]string{"bridge": "b-bridge 192.0.2.50", "private": "timeout", "vepa": "timeout"} {
		a, b := w.Pod("a-"+mode, at(50, `"mode": "`+mode+`", `)), w.Pod("b-"+mode, at(51, `"mode": "`+mode+`", `))
		endpointtest.Must(t, a.Do(spec.Add))
		endpointtest.Must(t, b.Do(spec.Add))
		b.Serve("udp", "192.0.2.51:80")
		ask := a.AskBriefly
		if mode == "bridge" {
			ask = a.Ask
		}
		w.Want(mode, ask("udp", "192.0.2.51:80"), want)
		endpointtest.Must(t, a.Do(spec.Check))
		a.Conf += `, "mode": "passthru"` // of two equal keys the last one counts
		w.Fails(a.Do(spec.Check), "container macvlan mode "+mode+" does not match expected value: passthru")
		endpointtest.Must(t, a.Do(spec.Del))
		endpointtest.Must(t, b.Do(spec.Del))
	}
}

// If several Ethernet addresses are requested, the most specific one wins. If none is requested,
// a repeated ADD gets the same address again.
func TestMAC(t *testing.T) {
	w := newWorld(t)
	const conf, arg, runtime = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
	p := w.Pod("a", at(50, ""))
	derived := macOf(t, p)
	w.Want("again", macOf(t, p), derived)
	if other := macOf(t, w.Pod("b", at(50, ""))); other == derived {
		t.Error("two containers have one address")
	}
	p.Conf += `, "mac": "` + conf + `"`
	w.Want("mac", macOf(t, p), conf)
	p.Call.Args = "IgnoreUnknown=1;MAC=" + arg
	w.Want("CNI_ARGS", macOf(t, p), arg)
	p.Conf += `, "runtimeConfig": {"mac": "` + runtime + `"}`
	w.Want("capability", macOf(t, p), runtime)
}

// macOf attaches and detaches, and returns the container's MAC.
func macOf(t *testing.T, p *endpointtest.Pod) string {
	t.Helper()
	endpointtest.Must(t, p.Do(spec.Add))
	defer func() { endpointtest.Must(t, p.Do(spec.Del)) }()
	mac := p.Link("eth0").Attrs().HardwareAddr
	if mac[0]&3 != 2 {
		t.Errorf("%s is not locally administered", mac)
	}
	if p.Result.Interfaces[0].Mac != mac.String() {
		t.Errorf("result has %s, link %s", p.Result.Interfaces[0].Mac, mac)
	}
	return mac.String()
}

// The only link of a master in passthru mode has the master's address. A requested address
// becomes the master's until the link is deleted.
func TestPassthru(t *testing.T) {
	w := newWorld(t)
	masters := func() string { return w.HostLink("uplink").Attrs().HardwareAddr.String() }
	own := masters()
	w.Client.Serve("tcp", node.Client4+":80")
	for conf, want := range map[string]string{"": own, `"mac": "02:00:00:00:00:07", `: "02:00:00:00:00:07"} {
		p := w.Pod(fmt.Sprintf("p%d", len(conf)), at(50, conf+`"mode": "passthru", `))
		endpointtest.Must(t, p.Do(spec.Add))
		w.Want("child", p.Link("eth0").Attrs().HardwareAddr.String(), want)
		w.Want("master", masters(), want)
		w.Want("traffic", p.Ask("tcp", node.Client4+":80"), "client 192.0.2.50")
		endpointtest.Must(t, p.Do(spec.Check))
		w.Pod(fmt.Sprintf("q%d", len(conf)), at(51, "")).Refused("failed to create macvlan: ")
		endpointtest.Must(t, p.Do(spec.Del))
		w.Want("master afterwards", masters(), own)
	}
}

// The error for a busy link names the reason.
func TestBusy(t *testing.T) {
	w := newWorld(t)
	br := w.Bridge("br0")
	endpointtest.Must(t, w.HostConn().LinkSetMaster(w.Master("m0"), w.HostLink(br.Name)))
	w.Pod("a", at(50, `"master": "m0", `)).Refused("m0 is used otherwise: a port of a bridge")
}

// Without IPAM the link is up and has nothing, and CHECK succeeds.
func TestLayer2(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"dns": {"domain": "x"}, "bcqueuelen": 2000`).Add()
	link := p.Link("eth0")
	if link.Attrs().Flags&net.FlagUp == 0 || len(p.Result.IPs) != 0 || p.Result.DNS.Domain != "x" {
		t.Errorf("%+v, %+v", link.Attrs(), p.Result)
	}
	if m, ok := link.(*netlink.Macvlan); !ok || m.BCQueueLen != 2000 {
		t.Errorf("broadcast queue: %+v", link)
	}
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Conn().LinkSetDown(link))
	w.Fails(p.Do(spec.Check), "Interface eth0 is down")
}

// An address moves to another container, or here from another node. Its neighbours have the old
// MAC, but reach it at once.
func TestAddressMoves(t *testing.T) {
	w := newWorld(t)
	w.Misled(w.Router, "tonode", "192.0.2.50", "2001:db8:1::50")
	for _, name := range []string{"old", "new"} {
		p := w.Pod(name, at(50, ""))
		endpointtest.Must(t, p.Do(spec.Add))
		w.AtOnce(w.Client, p, node.Client4, node.Client6)
		endpointtest.Must(t, p.Do(spec.Del))
	}
}

// A master without carrier delays an ADD a little. The ADD does not fail.
func TestNoCarrier(t *testing.T) {
	w := newWorld(t)
	w.Master("m0")
	peer, err := w.Router.Conn().Link("m0")
	endpointtest.Must(t, err)
	endpointtest.Must(t, w.Router.Conn().LinkSetDown(peer))
	took := nettest.Quickest(func(n int) {
		p := w.Pod(fmt.Sprintf("p%d", n), at(50+n, `"master": "m0", `)).Add()
		endpointtest.Must(t, p.Do(spec.Check))
	})
	if took > time.Second {
		t.Errorf("ADD took %v", took)
	}
}
