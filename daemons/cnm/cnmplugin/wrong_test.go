// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// onAdd lists the calls of a first ADD without which the ADD fails.
var onAdd = []string{
	"NetworkDriver.GetCapabilities", "IpamDriver.GetDefaultAddressSpaces", "IpamDriver.RequestPool", "IpamDriver.RequestAddress",
	"NetworkDriver.CreateNetwork", "NetworkDriver.CreateEndpoint", "NetworkDriver.Join", "NetworkDriver.ProgramExternalConnectivity",
}

// onDel lists the calls of a DEL.
var onDel = []string{
	"NetworkDriver.RevokeExternalConnectivity", "NetworkDriver.Leave", "NetworkDriver.DeleteEndpoint", "IpamDriver.ReleaseAddress",
}

// TestEveryCallFails lets each call of an ADD fail, in each possible way. The ADD fails with a
// code that fits the reason. It leaves nothing behind, not even what the driver did before it
// failed to answer.
func TestEveryCallFails(t *testing.T) {
	d := &cnmtest.Driver{}
	l := newLab(t, d)
	p, gc := l.Pod("x", both), l.Pod("gc", both)
	every := stride(t, 3)
	for i, method := range onAdd {
		for j, c := range []struct {
			about  string
			answer http.HandlerFunc
			code   spec.Code
		}{
			{"refuses", cnmtest.Refuse("out of order"), 100},
			{"says so in Error", cnmtest.Say(200, `{"Error":"out of order"}`), 100},
			{"fails in HTTP", cnmtest.Say(500, `{"Err":"out of order"}`), 100},
			{"speaks another language", cnmtest.Say(200, "<html>"), 6},
			{"answers a list", cnmtest.Say(200, "[1]"), 6},
			{"answers twice", cnmtest.Say(200, "{}{}"), 6},
			{"says nothing of the protocol", cnmtest.Say(403, "<html>Forbidden"), 100},
			{"dies before", cnmtest.Cut(), 11},
			{"dies after", l.srv.DoAnd(cnmtest.Cut()), 11},
		} {
			if (i+j)%every != 0 {
				continue // each call still fails, and each way is met
			}
			what := method + " " + c.about
			l.srv.Fault(method, 1, c.answer)
			err := p.Do(spec.Add)
			l.srv.Well()
			if err == nil || spec.ErrorCode(err) != c.code {
				t.Errorf("%s: code %d, %v; want code %d", what, spec.ErrorCode(err), err, c.code)
			}
			l.clean(what)
			endpointtest.Must(t, p.Do(spec.Del))
			l.reset(gc, what)
		}
	}
}

// reset ends the network, so that the next ADD is a first one again. It checks that the driver
// got everything back, except an address that the driver never reported.
func (l *lab) reset(p *endpointtest.Pod, what string) {
	l.Helper()
	endpointtest.Must(l.T, l.gc(p, `,"keepNetwork":false`))
	if n := len(l.driver.Networks()) + l.driver.Pools(); n > 0 && !strings.HasSuffix(what, "dies after") {
		l.Errorf("%s: %d networks and pools stay", what, n)
	}
	l.driver.Forget()
	l.removeBridges()
}

// TestHangs lets any call hang. The call ends, even if no call of the cleanup is answered either.
// The next GC then cleans up.
func TestHangs(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf, timeout := l.hurried(l.Pod("first", both), l.Pod("first-gc", both))
	p, gc := l.Pod("x", conf), l.Pod("gc", conf)
	for i := 0; i < len(onAdd); i += stride(t, 4) {
		method := onAdd[i]
		l.srv.Fault(method, 1, cnmtest.Hang())
		start := time.Now()
		err := p.Do(spec.Add)
		if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "driver lab: "+method+": no answer in time") {
			t.Errorf("%s: code %d, %v", method, spec.ErrorCode(err), err)
		}
		if took := time.Since(start); took > 10*timeout {
			t.Errorf("%s: took %v with a timeout of %v", method, took, timeout)
		}
		l.srv.Well()
		l.clean(method + " hangs")
		l.reset(gc, method)
	}
	for i := 0; i < len(onDel); i += stride(t, 3) {
		method := onDel[i]
		endpointtest.Must(t, p.Do(spec.Add))
		l.srv.Fault(method, -1, cnmtest.Hang())
		endpointtest.Must(t, p.Do(spec.Del))
		l.srv.Well()
		endpointtest.Must(t, l.gc(gc, ""))
		l.clean(method + " hangs")
	}
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Del))
	l.srv.Fault("NetworkDriver.Join", -1, cnmtest.Hang())
	for _, method := range []string{"NetworkDriver.Leave", "NetworkDriver.DeleteEndpoint", "IpamDriver.ReleaseAddress"} {
		l.srv.Fault(method, -1, cnmtest.Hang())
	}
	if err := p.Do(spec.Add); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("everything hangs: code %d, %v", spec.ErrorCode(err), err)
	}
	l.srv.Well()
	endpointtest.Must(t, l.gc(gc, ""))
	l.clean("everything hangs")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2")
}

// TestUnknownMethods removes methods that Docker requires. The ADD fails and leaves nothing.
func TestUnknownMethods(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, gc := l.Pod("x", both), l.Pod("gc", both)
	for _, method := range onAdd {
		if method == "NetworkDriver.GetCapabilities" || method == "NetworkDriver.ProgramExternalConnectivity" {
			continue // TestForgiven tests this one
		}
		l.srv.Fault(method, -1, cnmtest.Say(404, "404 page not found\n"))
		err := p.Do(spec.Add)
		l.srv.Well()
		if spec.ErrorCode(err) != 100 || !strings.Contains(err.Error(), method+": HTTP status 404") {
			t.Errorf("%s: code %d, %v", method, spec.ErrorCode(err), err)
		}
		l.clean(method)
		l.reset(gc, method)
	}
}

// TestEmptyNames answers a first ADD with empty names.
func TestEmptyNames(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, gc := l.Pod("x", both), l.Pod("gc", both)
	for _, c := range []struct {
		method, answer, text string
		code                 spec.Code
	}{
		{"Plugin.Activate", `{}`, "is no NetworkDriver", 7},
		{"Plugin.Activate", `{"Implements":[""]}`, "is no NetworkDriver", 7},
		{"Plugin.Activate", `{"Implements":"NetworkDriver"}`, "bad answer", 6},
		{"NetworkDriver.GetCapabilities", `{"Scope":7}`, "bad answer", 6},
		{"IpamDriver.GetDefaultAddressSpaces", `{"LocalDefaultAddressSpace":""}`, "no local address space", 6},
		{"IpamDriver.RequestPool", `{}`, `pool id ""`, 6},
		{"IpamDriver.RequestPool", `{"PoolID":"","Pool":"10.88.0.0/24"}`, `pool id ""`, 6},
		{"IpamDriver.RequestPool", `{"PoolID":"p","Pool":""}`, "bad answer", 6},
		{"IpamDriver.RequestPool", `{"PoolID":"p","Pool":"fd88::/64"}`, "pool fd88::/64", 6},
		{"IpamDriver.RequestPool", `{"PoolID":"p","Pool":"10.88.0.0/24","Data":{"com.docker.network.gateway":"10.88.0.1"}}`, "gateway", 6},
		{"IpamDriver.RequestAddress", `{"Address":"10.88.0.1"}`, "bad answer", 6},
	} {
		l.srv.Fault(c.method, 1, cnmtest.Say(200, c.answer))
		err := p.Do(spec.Add)
		l.srv.Well()
		if spec.ErrorCode(err) != c.code || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "driver lab") {
			t.Errorf("%s answers %s: code %d, %v; want %d, %q", c.method, c.answer, spec.ErrorCode(err), err, c.code, c.text)
		}
		l.clean(c.method + " " + c.answer)
		l.reset(gc, c.method)
	}
	p.Add()
	l.srv.Fault("NetworkDriver.Join", 1, l.srv.DoAnd(cnmtest.Say(200, `{"InterfaceName":{"SrcName":""},"Gateway":""}`)))
	q := l.Pod("y", both).Add() // as without an InterfaceName, there is no link
	if len(q.Result.Interfaces) != 0 {
		t.Errorf("%+v", q.Result)
	}
	endpointtest.Must(t, q.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
}

// TestGivesBackWhatItRefuses lets the driver give a pool and an address in an answer that we
// refuse. Both are given back.
func TestGivesBackWhatItRefuses(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	l.srv.Fault("IpamDriver.RequestPool", 1, l.srv.DoAnd(cnmtest.Say(200, `{"PoolID":"lab-10.88.0.0_24","Pool":""}`)))
	x := l.Pod("x", both)
	x.Refused("pool id")
	l.Want("pools out", fmt.Sprint(l.driver.Pools()), "0")
	endpointtest.Must(t, x.Do(spec.Add)) // nothing is left that could disturb it
	l.srv.Fault("IpamDriver.RequestAddress", 1, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		endpointtest.Must(t, err)
		r.Body = io.NopCloser(strings.NewReader(strings.ReplaceAll(string(body), "10.88.0.77", "10.88.0.66")))
		l.srv.Handler.ServeHTTP(w, r)
	})
	l.Pod("y", both+`,"runtimeConfig":{"ips":["10.88.0.77"]}`).Refused("driver lab: IpamDriver.RequestAddress: bad answer of the driver: 10.88.0.77 was asked for, 10.88.0.66/24 given")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "4")
	endpointtest.Must(t, x.Do(spec.Del))
	l.clean("after DEL")
}

// TestPoolTaken requests a pool that the driver has already given, in an answer that was lost.
// The ADD fails, and the error says what to do.
func TestPoolTaken(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	x := l.Pod("x", both)
	l.srv.Fault("IpamDriver.RequestPool", 1, l.srv.DoAnd(cnmtest.Cut()))
	x.Refused("without an answer")
	err := x.Do(spec.Add)
	if spec.ErrorCode(err) != 100 {
		t.Errorf("code %d, %v", spec.ErrorCode(err), err)
	}
	l.Fails(err, "driver lab: IpamDriver.RequestPool: pool 10.88.0.0/24 is in use")
	l.Fails(err, "release it with the driver's own tools")
	l.clean("refused")
}

// TestWrongMAC checks that the link gets the MAC address in the driver's answer, as with Docker.
// It does so whatever address the link had, and even if another address was requested.
func TestWrongMAC(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	l.srv.Fault("NetworkDriver.CreateEndpoint", 1, l.srv.DoAnd(cnmtest.Say(200, `{"Interface":{"MacAddress":"02:42:0A:58:00:02"}}`)))
	p := l.Pod("a", both).Add()
	l.Want("mac", p.Link("eth0").Attrs().HardwareAddr.String()+" "+p.Result.Interfaces[0].Mac, "02:42:0a:58:00:02 02:42:0a:58:00:02")
	endpointtest.Must(t, p.Do(spec.Check))
	l.srv.Fault("NetworkDriver.CreateEndpoint", 1, l.srv.DoAnd(cnmtest.Say(200, `{"Interface":{"MacAddress":"02:42:0a:58:00:09"}}`)))
	q := l.Pod("b", both+`,"runtimeConfig":{"mac":"02:42:0a:58:00:03"}`)
	err := q.Do(spec.Add)
	if spec.ErrorCode(err) != 6 || !strings.Contains(err.Error(), "driver modified interface MAC address: 02:42:0a:58:00:03 to 02:42:0a:58:00:09") {
		t.Errorf("code %d, %v", spec.ErrorCode(err), err)
	}
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
}

func TestBadAnswers(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	l.Pod("first", both).Add() // creates the network
	p := l.Pod("x", both)
	for _, c := range []struct {
		method, answer, text string
		code                 spec.Code
	}{
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"Address":"10.88.0.99/24"}}`, "driver modified interface address", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"Address":"10.88.0.99"}}`, "bad answer", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"MacAddress":"no"}}`, "MAC address", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"MacAddress":"01:00:5e:00:00:01"}}`, "MAC address", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"MacAddress":"00:00:00:00:00:00"}}`, "MAC address", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":{"MacAddress":"02:42:0a:58:00:02:00:00"}}`, "MAC address", 6},
		{"NetworkDriver.CreateEndpoint", `{"Interface":[]}`, "bad answer", 6},
		{"NetworkDriver.Join", `{"InterfaceName":{"SrcName":"../../x"}}`, "interface", 6},
		{"NetworkDriver.Join", `{"InterfaceName":{"SrcName":"nothere"}}`, "which is not in the host's namespace", 100},
		{"NetworkDriver.Join", `{"InterfaceName":{"SrcName":"lo"}}`, "failed to move", 999},
		{"NetworkDriver.Join", `{"Gateway":"10.88.0.1/24"}`, "bad answer", 6},
		{"NetworkDriver.Join", `{"Gateway":"fd88::1"}`, "gateways fd88::1", 6},
		{"NetworkDriver.Join", `{"GatewayIPv6":"10.88.0.1"}`, "and 10.88.0.1", 6},
		{"NetworkDriver.Join", `{"StaticRoutes":[{"Destination":"10.0.0.0/8","RouteType":0,"NextHop":"fd88::1"}]}`, "static route", 6},
		{"NetworkDriver.Join", `{"StaticRoutes":[{"Destination":"10.0.0.0/8","RouteType":0}]}`, "static route", 6},
		{"NetworkDriver.Join", `{"StaticRoutes":[{"Destination":"","RouteType":1}]}`, "static route", 6},
		{"IpamDriver.RequestAddress", `{"Address":""}`, "bad answer", 6},
		{"IpamDriver.RequestAddress", `{"Address":"fd88::9/64"}`, "bad answer", 6},
	} {
		l.srv.Fault(c.method, 1, cnmtest.Say(200, c.answer))
		err := p.Do(spec.Add)
		l.srv.Well()
		if spec.ErrorCode(err) != c.code || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "driver lab") {
			t.Errorf("%s answers %s: code %d, %v; want %d, %q", c.method, c.answer, spec.ErrorCode(err), err, c.code, c.text)
		}
		if n := l.driver.Endpoints(); n != 1 {
			t.Errorf("%s answers %s: the driver has %d endpoints", c.method, c.answer, n)
		}
		if n := len(l.attachments()); n != 2 {
			t.Errorf("%s answers %s: %d records, not the first's two", c.method, c.answer, n)
		}
	}
}

// TestForgiven checks that the plugin tolerates what Docker tolerates: newer methods that are
// missing, errors of EndpointOperInfo, an IPAM driver without capabilities, and empty answers.
func TestForgiven(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	for _, m := range []string{
		"Plugin.Activate", "NetworkDriver.GetCapabilities", "IpamDriver.GetCapabilities", "NetworkDriver.ProgramExternalConnectivity",
		"NetworkDriver.EndpointOperInfo", "NetworkDriver.RevokeExternalConnectivity",
	} {
		l.srv.Fault(m, -1, cnmtest.Say(404, "404 page not found\n"))
	}
	l.srv.Fault("NetworkDriver.CreateNetwork", 0, nil)
	p := l.Pod("a", both).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Status))
	l.srv.Fault("NetworkDriver.Leave", -1, cnmtest.Refuse("out of order"))
	l.srv.Fault("NetworkDriver.DeleteEndpoint", 1, l.srv.DoAnd(cnmtest.Say(200, "")))
	endpointtest.Must(t, p.Do(spec.Del))
	l.srv.Fault("IpamDriver.ReleaseAddress", -1, cnmtest.Refuse("out of order"))
	endpointtest.Must(t, p.Do(spec.Del))
}

// TestForgets restarts a driver without its state. The driver gets the network and its pools
// again, once. A DEL of something that the driver forgot succeeds.
func TestForgets(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	old := l.Pod("old", both).Add()
	l.driver.Forget()
	l.srv.Calls()
	p := l.Pod("new", both).Add()
	methods := l.srv.Methods()
	l.Want("networks made again", fmt.Sprint(count(methods, "NetworkDriver.CreateNetwork")), "1")
	l.Want("endpoints asked for", fmt.Sprint(count(methods, "NetworkDriver.CreateEndpoint")), "2")
	l.Want("an address of its own", p.IP(0)+" "+p.IP(1), "10.88.0.3 fd88::3")
	l.Want("pools asked for", fmt.Sprint(count(methods, "IpamDriver.RequestPool")), "2")
	if err := old.Do(spec.Check); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("CHECK of what the driver forgot: %v", err)
	}
	endpointtest.Must(t, old.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
	// This driver always answers that the network is unknown. The ADD does not ask it without end.
	l.srv.Fault("NetworkDriver.CreateEndpoint", -1, cnmtest.Refuse("unknown network"))
	l.srv.Fault("NetworkDriver.CreateNetwork", -1, cnmtest.Say(200, "{}"))
	l.srv.Calls()
	l.Pod("x", both).Refused("unknown network")
	l.Want("tries", fmt.Sprint(count(l.srv.Methods(), "NetworkDriver.CreateEndpoint")), "2")
	l.clean("after a refused ADD")
}

// TestAlreadyExists loses our own state, but not the driver's.
func TestAlreadyExists(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", `"driver":"lab",`+endpointtest.Static("10.99.0.9/24 10.99.0.1")).Add()
	endpointtest.Must(t, p.Do(spec.Del))
	l.forget()
	endpointtest.Must(t, p.Do(spec.Add))
	methods := l.srv.Methods()
	l.Want("networks deleted", fmt.Sprint(count(methods, "NetworkDriver.DeleteNetwork")), "1")
	l.forget()
	l.srv.Fault("NetworkDriver.CreateNetwork", -1, cnmtest.Refuse("network already exists"))
	l.srv.Fault("NetworkDriver.DeleteNetwork", -1, cnmtest.Refuse("network is not empty"))
	endpointtest.Must(t, l.Pod("b", p.Conf[strings.Index(p.Conf, `"driver"`):]).Do(spec.Add))
}

// TestCheckNotices removes things from the container, and CHECK names them.
func TestCheckNotices(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both).Add()
	for _, damage := range []struct {
		text string
		do   func() error
	}{
		{"Expected Route {0.0.0.0/0", func() error {
			return p.Conn().RouteDel(&netlink.Route{Gw: p.Result.IPs[0].Gateway.AsSlice(), LinkIndex: p.Link("eth0").Attrs().Index})
		}},
		{"Failed to match addr 10.88.0.2/24", func() error {
			addr, err := netlink.ParseAddr("10.88.0.2/24")
			endpointtest.Must(t, err)
			return p.Conn().AddrDel(p.Link("eth0"), addr)
		}},
		{"Interface eth0 is down", func() error { return p.Conn().LinkSetDown(p.Link("eth0")) }},
		{"doesn't match container Mac", func() error {
			return p.Conn().LinkSetHardwareAddr(p.Link("eth0"), net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}},
		{"not found", func() error { return p.Conn().LinkDel(p.Link("eth0")) }},
	} {
		endpointtest.Must(t, damage.do())
		l.Fails(p.Do(spec.Check), damage.text)
	}
	l.Fails(l.Pod("b", both).Do(spec.Check), "Required prevResult missing")
}
