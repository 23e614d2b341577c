// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipvlan

import (
	"fmt"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func newWorld(t *testing.T) *endpointtest.World {
	nettest.Need(t, nettest.LinkKind("ipvlan"))
	return endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
}

// at returns the configuration of a container on the node's uplink. n is the last byte of the
// address.
func at(n int, more string) string {
	return fmt.Sprintf(`%s"ipam": {"type": "static", "addresses": [
		{"address": "192.0.2.%d/24", "gateway": "192.0.2.2"}, {"address": "2001:db8:1::%d/64", "gateway": "2001:db8:1::2"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`, more, n, n)
}

// routed is a configuration in a subnet that the router sends to the node.
func routed(n int, more string) string {
	return fmt.Sprintf(`%s"ipam": {"type": "static", "addresses": [{"address": "10.5.0.%d/24"}, {"address": "fd05::%d/64"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`, more, n, n)
}

// Containers reach each other and the outside in every mode. All use the master's Ethernet address.
func TestTraffic(t *testing.T) {
	for name, conf := range map[string]func(int, string) string{"l2": at, "l3": routed, "l3s": routed} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			mode := `"mode": "` + name + `", `
			a, b := w.Pod("a", conf(50, mode)).Add(), w.Pod("b", conf(51, mode)).Add()
			mac := w.HostLink("uplink").Attrs().HardwareAddr.String()
			w.Want("mac", a.Link("eth0").Attrs().HardwareAddr.String()+a.Result.Interfaces[0].Mac, mac+mac)
			for n, outside := range []string{node.Client4, node.Client6} {
				b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
				w.Client.Serve("tcp", endpointtest.Join(outside, "80"))
				w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
				w.Want("container to the outside", a.Ask("tcp", endpointtest.Join(outside, "80")), "client "+a.IP(n))
				w.Want("the outside to container", w.Client.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+outside)
			}
			endpointtest.Must(t, a.Do(spec.Check))
			other := *b
			other.Conf += `, "mode": "` + map[bool]string{true: "l3", false: "l2"}[name == "l2"] + `"` // of two equal keys the last one counts
			w.Fails(other.Do(spec.Check), "Container IPVlan mode "+name+" does not match expected value")
		})
	}
}

// In a chain, master and addresses come from the plugin before. DEL does not depend on how many
// interfaces there are by then.
func TestChain(t *testing.T) {
	w := newWorld(t)
	const prev = `{"cniVersion": "1.1.0", "interfaces": [%s], "ips": [{"address": "192.0.2.60/24", "gateway": "192.0.2.2"}],
		"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.0.2.53"]}}`
	w.Master("m0")
	p := w.Pod("a", `"prevResult": `+fmt.Sprintf(prev, `{"name": "m0"}`))
	endpointtest.Must(t, p.Do(spec.Add))
	if got := fmt.Sprint(p.Result.Interfaces[0].Name, len(p.Result.Interfaces), p.Result.IPs[0].Address, p.Result.DNS.Nameservers); got != "eth01 192.0.2.60/24 [192.0.2.53]" {
		t.Errorf("result %s", got)
	}
	if got, want := p.Link("eth0").Attrs().ParentIndex, w.HostLink("m0").Attrs().Index; got != want {
		t.Errorf("master %d, want %d", got, want)
	}
	endpointtest.Must(t, p.Do(spec.Check))
	p.Result.Interfaces = append(p.Result.Interfaces, spec.Interface{Name: "bwp123"})
	endpointtest.Must(t, p.Do(spec.Check))
	w.Host.Delete("uplink") // the default route goes with the link
	endpointtest.Must(t, p.Do(spec.Del))
	w.Detached(p)

	two := w.Pod("b", `"prevResult": `+fmt.Sprintf(prev, `{"name": "m0"}, {"name": "bwp123"}`))
	two.Refused("chained master failure. PrevResult lacks a single named interface")
	two.Conf = `"master": "m0", ` + two.Conf
	two.Add()
}

// An address moves here from another node. Its neighbours reach it at once.
func TestAddressMoves(t *testing.T) {
	w := newWorld(t)
	w.Misled(w.Router, "tonode", "192.0.2.50", "2001:db8:1::50")
	w.AtOnce(w.Client, w.Pod("a", at(50, "")).Add(), node.Client4, node.Client6)
}
