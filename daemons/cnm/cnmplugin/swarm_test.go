// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestSwarmAndGateways uses a swarm's driver, and a driver that needs no gateways.
func TestSwarmAndGateways(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{Scope: cnm.ScopeGlobal, SkipGateways: true})
	p := l.Pod("a", `"emulateSwarm":true,"options":{"x":"y"},`+both).Add()
	l.Want("options", string(l.driver.Networks()[0].Options[cnm.OptionGeneric]), `{"vni":"4711","x":"y"}`)
	if p.Result.IPs[0].Gateway.IsValid() || l.driver.Networks()[0].IPv4Data[0].Gateway.IsValid() {
		t.Error("a gateway was asked for")
	}
	calls := l.srv.Methods()
	if check, pool := index(calls, "NetworkDriver.GwAllocCheck"), index(calls, "IpamDriver.RequestPool"); check < 0 || check > pool {
		t.Errorf("GwAllocCheck is not before RequestPool: %q", calls)
	}
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, l.gc(p, `,"keepNetwork":false`))
	l.Want("networks freed", fmt.Sprint(count(l.srv.Methods(), "NetworkDriver.FreeNetwork")), "1")

	// The container gets the gateway of another IPAM plugin. A driver that needs no gateway does not
	// get it.
	q := l.Pod("b", `"driver":"lab",`+endpointtest.Static("10.99.0.9/24 10.99.0.1")).Add()
	l.Want("gateway", q.Gateway(0), "10.99.0.1")
	if l.driver.Networks()[0].IPv4Data[0].Gateway.IsValid() {
		t.Error("the driver got a gateway")
	}
	endpointtest.Must(t, q.Do(spec.Del))
	l.clean("after DEL")
}

// TestNodes checks what a swarm's driver gets. Before the network it gets this node and the other
// nodes. Later it gets the nodes that come and go. If it forgot them, it gets all of them again.
// A driver without DiscoverNew works too.
func TestNodes(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{Scope: cnm.ScopeGlobal})
	nodes := func(list string) string {
		return `"emulateSwarm":true,"nodeAddress":"192.0.2.10",` + list + both
	}
	sentNodes := func(want string) {
		t.Helper()
		l.Want("nodes", strings.Join(l.driver.Nodes(), ", "), want)
	}
	a := l.Pod("a", nodes(`"nodes":["192.0.2.11"],`)).Add()
	sentNodes("192.0.2.10 self, 192.0.2.11")
	calls := l.srv.Calls()
	for _, c := range calls {
		if c.Method == "NetworkDriver.DiscoverNew" { // as in the recording of swarm init
			l.Want("body", c.Body, `{"DiscoveryType":1,"DiscoveryData":{"Address":"192.0.2.10","BindAddress":"192.0.2.10","Self":true}}`)
			break
		}
	}
	l.Want("first call about the network", calls[index(methods(calls), "NetworkDriver.AllocateNetwork")-1].Method, "NetworkDriver.DiscoverNew")
	b := l.Pod("b", nodes(`"nodes":["192.0.2.11"],`)).Add()
	l.Want("sent again", fmt.Sprint(count(l.srv.Methods(), "NetworkDriver.DiscoverNew")), "0")
	c := l.Pod("c", nodes(`"nodes":["192.0.2.12","2001:db8::13"],`)).Add()
	sentNodes("192.0.2.10 self, 192.0.2.12, 2001:db8::13")
	l.driver.Forget()
	endpointtest.Must(t, a.Do(spec.Del))
	d := l.Pod("d", nodes(`"nodes":["192.0.2.12","2001:db8::13"],`)).Add()
	sentNodes("192.0.2.10 self, 192.0.2.12, 2001:db8::13")
	for _, p := range []*endpointtest.Pod{b, c, d} {
		endpointtest.Must(t, p.Do(spec.Del))
	}
	l.srv.Fault("NetworkDriver.DiscoverNew", 1, cnmtest.Say(404, "404 page not found"))
	l.srv.Fault("NetworkDriver.DiscoverNew", 1, cnmtest.Refuse("out of order"))
	e := l.Pod("e", nodes(`"nodes":["192.0.2.14","192.0.2.15"],`)).Add()
	endpointtest.Must(t, e.Do(spec.Del))
	l.clean("after DEL")
	for conf, text := range map[string]string{
		`"nodes":["192.0.2.1"],`: "nodes goes with nodeAddress", `"nodeAddress":"192.0.2.1",`: "both with emulateSwarm",
		`"emulateSwarm":true,"nodeAddress":"x",`:                               "addresses of different nodes",
		`"emulateSwarm":true,"nodeAddress":"192.0.2.1","nodes":["192.0.2.1"],`: "addresses of different nodes",
	} {
		l.Pod(fmt.Sprintf("x%d", len(conf)), conf+both).Refused(text)
	}
}

func methods(calls []cnmtest.Call) (list []string) {
	for _, c := range calls {
		list = append(list, c.Method)
	}
	return list
}

// TestZeroPool uses an IPAM driver like Calico's. Its pools are 0.0.0.0/0 and ::/0, it gives
// single addresses, and its gateway is outside of all networks. Containers reach each other.
func TestZeroPool(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{ZeroPool: true})
	conf := `"driver":"lab","ipam":{"type":"cnm-ipam","driver":"lab","pools":[{},{"ipv6":true}]}`
	a, b := l.Pod("a", conf).Add(), l.Pod("b", conf+`,"runtimeConfig":{"ips":["192.0.2.77"]}`).Add()
	l.Want("pool", l.driver.Networks()[0].IPv4Data[0].Pool.String()+" "+l.driver.Networks()[0].IPv4Data[0].Gateway.String(), "0.0.0.0/0 169.254.1.1/32")
	l.Want("addresses", a.Result.IPs[0].Address.String()+" "+b.Result.IPs[0].Address.String(), "192.168.77.1/32 192.0.2.77/32")
	want(t, a, "169.254.1.1/32 via <nil> link", "0.0.0.0/0 via 169.254.1.1 universe",
		"fd77:1::1/128 via <nil> universe", "::/0 via fd77:1::1 universe", "fd77::1/128 via <nil> universe")
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		l.Host.Sysctl(key, "1")
	}
	for n := range 2 {
		b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
		l.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
		l.Want("host to container", l.Host.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+b.Gateway(n))
	}
	endpointtest.Must(t, a.Do(spec.Check))
	for _, p := range []*endpointtest.Pod{a, b} {
		endpointtest.Must(t, p.Do(spec.Del))
	}
	l.clean("after DEL")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2") // those of the gateways
}

// TestReplay uses a driver with RequiresRequestReplay. After a boot it gets all earlier requests
// again, before any new one.
func TestReplay(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{RequiresReplay: true})
	a := l.Pod("a", both).Add()
	l.driver.Forget()
	l.removeBridges()
	l.boot()
	l.srv.Calls()
	b := l.Pod("b", both).Add()
	l.Want("an address of its own", b.IP(0)+" "+b.IP(1), "10.88.0.3 fd88::3")
	calls := l.srv.Methods()
	l.Want("pools", fmt.Sprint(count(calls, "IpamDriver.RequestPool")), "2")
	l.Want("addresses", fmt.Sprint(count(calls, "IpamDriver.RequestAddress")), "6") // the gateways', the old one and the new one; none is requested twice
	endpointtest.Must(t, a.Do(spec.Del))
	endpointtest.Must(t, b.Do(spec.Del))
	l.clean("after DEL")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2")
	l.srv.Calls()
	endpointtest.Must(t, l.Pod("c", both).Do(spec.Add))
	l.Want("pools", fmt.Sprint(count(l.srv.Methods(), "IpamDriver.RequestPool")), "0")
}
