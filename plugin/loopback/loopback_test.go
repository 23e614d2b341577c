// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "loopback")})
}

// newPod is a container whose lo is still down.
func newPod(t *testing.T, conf string) (*endpointtest.World, *endpointtest.Pod) {
	w := endpointtest.New(t, &Plugin)
	p := w.Pod("a", conf)
	endpointtest.Must(t, p.Conn().LinkSetDown(p.Link("lo")))
	return w, p
}

func TestUpAndDown(t *testing.T) {
	w, p := newPod(t, `"x": 1`)
	w.Fails(p.Do(spec.Check), "loopback interface is down")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Check))
	w.Want("interface", p.Result.Interfaces[0].Name+" "+p.Result.Interfaces[0].Mac, "lo 00:00:00:00:00:00")
	w.Want("addresses", p.Result.IPs[0].Address.String()+" "+p.Result.IPs[1].Address.String(), "127.0.0.1/8 ::1/128")
	p.Serve("tcp", "127.0.0.1:80")
	w.Want("itself", p.Ask("tcp", "127.0.0.1:80"), "a 127.0.0.1")
	endpointtest.Must(t, p.Do(spec.Del))
	w.Fails(p.Do(spec.Check), "loopback interface is down")
	endpointtest.Must(t, p.Do(spec.Del))
}

// ADD refuses an address that does not belong on lo, and leaves lo unchanged.
func TestForeignAddress(t *testing.T) {
	w, p := newPod(t, `"x": 1`)
	addr, err := netlink.ParseAddr("10.1.1.1/32")
	endpointtest.Must(t, err)
	endpointtest.Must(t, p.Conn().AddrAdd(p.Link("lo"), addr))
	p.Refused(`loopback interface found with non-loopback address "10.1.1.1"`)
	w.Fails(p.Do(spec.Check), "loopback interface is down")
}

// ADD returns a previous result unchanged.
func TestPrevious(t *testing.T) {
	_, p := newPod(t, `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth7"}], "dns": {"domain": "x"}}`)
	endpointtest.Must(t, p.Do(spec.Add))
	if len(p.Result.Interfaces) != 1 || p.Result.Interfaces[0].Name != "eth7" || p.Result.DNS.Domain != "x" {
		t.Errorf("result: %+v", p.Result)
	}
	if p.Link("lo").Attrs().Flags&net.FlagUp == 0 {
		t.Error("lo is down")
	}
}
