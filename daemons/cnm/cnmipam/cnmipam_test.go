// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin, &bridge.Plugin) }

func object(t testing.TB, text string) conformance.Object {
	t.Helper()
	var o conformance.Object
	endpointtest.Must(t, json.Unmarshal([]byte(text), &o))
	return o
}

func TestContract(t *testing.T) {
	d := &cnmtest.Driver{}
	cnmtest.Start(t, "contract", d)
	ipam := func(more string) conformance.Object {
		return object(t, `{"ipam":{"type":"cnm-ipam","driver":"contract",`+more+`}}`)
	}
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: conformance.Subject{
		Conf:   ipam(`"pools":[{"subnet":"10.94.0.0/16","ipRange":"10.94.1.0/24","auxAddresses":{"router":"10.94.1.1"}},{"ipv6":true}],"routes":[{"dst":"0.0.0.0/0"}]`),
		Leaves: []string{"file /var/lib/patchbay/cnm/pools/"},
		Refused: []conformance.Refusal{
			{About: "no section", Conf: object(t, `{"ipam":null}`), Code: 7, Msg: "IPAM config missing 'ipam' key"},
			{About: "no driver", Conf: object(t, `{"ipam":{"type":"cnm-ipam"}}`), Code: 7, Msg: "exactly one of driver, socket and url"},
			{About: "no subnet", Conf: ipam(`"subnet":"10.94.0.0"`), Code: 7, Msg: "invalid subnet"},
			{About: "a part elsewhere", Conf: ipam(`"subnet":"10.94.0.0/16","ipRange":"10.95.0.0/24"`), Code: 7, Msg: "is not part of subnet"},
			{About: "a part of nothing", Conf: ipam(`"ipRange":"10.95.0.0/24"`), Code: 7, Msg: "needs a subnet"},
			{About: "a gateway elsewhere", Conf: ipam(`"subnet":"10.94.0.0/16","gateway":"10.95.0.1"`), Code: 7, Msg: "is no address of the subnet"},
			{About: "a kept address elsewhere", Conf: ipam(`"subnet":"10.94.0.0/16","auxAddresses":{"x":"fd00::1"}`), Code: 7, Msg: "auxAddresses.x"},
			{About: "two of a family", Conf: ipam(`"pools":[{"subnet":"10.94.0.0/16"},{"subnet":"10.95.0.0/16"}]`), Code: 7, Msg: "two pools of one family"},
			{About: "a route to nowhere", Conf: ipam(`"routes":[{"gw":"10.94.0.1"}]`), Code: 7, Msg: "invalid route 0"},
			{About: "an address outside", Args: "IP=10.98.0.9", Code: 7, Msg: "is not in any pool"},
			{About: "two addresses of a pool", Conf: object(t, `{"runtimeConfig":{"ips":["10.94.1.8","10.94.1.9"]}}`), Code: 7, Msg: "is the second of pool"},
			{About: "a bad address", Args: "IP=x", Code: 7, Msg: "cannot understand ip"},
			{About: "a bad mac", Conf: object(t, `{"runtimeConfig":{"mac":3}}`), Code: 6, Msg: "failed to load netconf"},
		},
	}})
	// Two gateways and a kept address stay at the driver. The rule torn empties the files that say
	// which addresses the driver has given, so each run of it leaves two more. In a long test it runs
	// by exec, too, and so does the rule killed, each of whose six kills may leave two.
	least, most := 3+2, 3+2
	if draw.All(t) {
		least, most = 3+2*2, 3+2*2+6*2
	}
	if n := d.Addresses(); n < least || n > most {
		t.Errorf("%d addresses are out, want %d to %d", n, least, most)
	}
}

// TestServesBridge lets the plugin bridge, which knows nothing of drivers, use the driver's IPv4
// and IPv6 addresses. The driver gets the MAC address before the interface exists.
func TestServesBridge(t *testing.T) {
	d := &cnmtest.Driver{RequiresMAC: true, GatewayInPool: true}
	srv := cnmtest.Start(t, "lab", d)
	w := endpointtest.New(t, &bridge.Plugin, &Plugin)
	conf := `"bridge":"pb0","isGateway":true,"ipam":{"type":"cnm-ipam","driver":"lab","pools":[{"subnet":"10.88.0.0/24"},{"subnet":"fd88::/64"}],
		"options":{"site":"4"},"dns":{"nameservers":["10.88.0.1"]},"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf+`,"runtimeConfig":{"ips":["10.88.0.77/24"]}`).Add()
	w.Want("wanted address", b.IP(0), "10.88.0.77")
	w.Want("dns", fmt.Sprint(a.Result.DNS.Nameservers), "[10.88.0.1]")
	b.Serve("tcp", endpointtest.Join(b.IP(1), "80"))
	w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(1), "80")), "b "+a.IP(1))
	endpointtest.Must(t, a.Do(spec.Check))
	sent := false
	for _, c := range srv.Calls() {
		sent = sent || c.Method == "IpamDriver.RequestAddress" && strings.Contains(c.Body, a.Link("eth0").Attrs().HardwareAddr.String())
		if c.Method == "IpamDriver.RequestPool" && !strings.Contains(c.Body, `"Options":{"site":"4"}`) {
			t.Errorf("options are missing: %s", c.Body)
		}
	}
	if !sent {
		t.Error("the driver did not get the MAC of the interface")
	}
	w.Pod("c", conf+`,"runtimeConfig":{"ips":["10.88.0.77"]}`).Refused("address 10.88.0.77 is not available")
	endpointtest.Must(t, a.Do(spec.Del))
	endpointtest.Must(t, b.Do(spec.Del))
	if n := d.Addresses(); n != 2 {
		t.Errorf("%d addresses are out, not the gateways alone", n)
	}
}

// TestAway checks that a DEL succeeds while the driver is away, and that a later ADD gives the
// address back.
func TestAway(t *testing.T) {
	d := &cnmtest.Driver{}
	srv := cnmtest.Start(t, "away", d)
	w := endpointtest.New(t, &bridge.Plugin, &Plugin)
	conf := `"bridge":"pb0","ipam":{"type":"cnm-ipam","driver":"away","subnet":"10.86.0.0/24"}`
	p := w.Pod("a", strings.Replace(conf, `"bridge"`, `"x":1,"bridge"`, 1))
	p.Conf = strings.Replace(p.Conf, `"net"`, `"away"`, 1)
	endpointtest.Must(t, p.Do(spec.Add))
	back := srv.Away(t, draw.All(t))
	endpointtest.Must(t, p.Do(spec.Del))
	q := w.Pod("b", conf)
	q.Conf = strings.Replace(q.Conf, `"net"`, `"away"`, 1)
	if err := q.Do(spec.Add); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("ADD without a driver: code %d, %v", spec.ErrorCode(err), err)
	}
	back()
	endpointtest.Must(t, q.Do(spec.Add))
	if n := d.Addresses(); n != 2 {
		t.Errorf("%d addresses are out, not the gateway and one", n)
	}
	endpointtest.Must(t, q.Do(spec.Del))
	records, err := filepath.Glob("/var/lib/patchbay/cnm/attachments/*/*")
	if err != nil || len(records) > 0 {
		t.Errorf("records %q, %v", records, err)
	}
}

// TestByURL uses a driver that is configured by its socket or its URL.
func TestByURL(t *testing.T) {
	d := &cnmtest.Driver{}
	srv := cnmtest.Start(t, "byurl", d)
	w := endpointtest.New(t, &bridge.Plugin, &Plugin)
	for n, where := range []string{`"socket":"` + srv.Path + `"`, `"url":"unix://` + srv.Path + `"`} {
		p := w.Pod(fmt.Sprint("p", n), fmt.Sprintf(`"bridge":"pb0","ipam":{"type":"cnm-ipam",%s,"subnet":"10.%d.0.0/24"}`, where, 80+n))
		p.Conf = strings.Replace(p.Conf, `"net"`, fmt.Sprintf(`"n%d"`, n), 1)
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Status))
		endpointtest.Must(t, p.Do(spec.Del))
	}
	if _, err := os.Stat(cnm.SocketDir); err != nil {
		t.Error(err)
	}
}
