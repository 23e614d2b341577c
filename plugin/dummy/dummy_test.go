// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin, &hostlocal.Plugin) }

func TestContract(t *testing.T) {
	nettest.Need(t, nettest.Dummy())
	plugintest.Run(t, &Plugin, plugintest.Case{
		Subject:   plugintest.Subject(t, "dummy"),
		Delegates: []*plugin.Plugin{&hostlocal.Plugin},
	})
}

// DEL and GC leave nothing, even after a kill -9 at any moment.
func TestAlone(t *testing.T) {
	nettest.Need(t, nettest.Dummy())
	endpointtest.Child{Plugins: []*plugin.Plugin{&Plugin, &hostlocal.Plugin, &static.Plugin}}.RunAlone(t)
}

const both = `"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}, {"address": "fd09::5/64"}],
	"routes": [{"dst": "10.77.0.0/16", "mtu": 1300}], "dns": {"nameservers": ["10.9.0.1"]}}`

func newWorld(t *testing.T) *endpointtest.World {
	nettest.Need(t, nettest.Dummy())
	return endpointtest.New(t, &Plugin, &static.Plugin)
}

// The result matches the kernel, and a repeated ADD gives the same MAC.
func TestResult(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", both)
	endpointtest.Must(t, p.Do(spec.Add))
	link, i := p.Link("eth0"), p.Result.Interfaces[0]
	if link.Type() != "dummy" || i.Mac != link.Attrs().HardwareAddr.String() || i.MTU != link.Attrs().MTU || i.Sandbox != p.Path {
		t.Errorf("%+v, %+v", i, link)
	}
	w.Want("DNS", strings.Join(p.Result.DNS.Nameservers, " "), "10.9.0.1")
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Add))
	w.Want("address of the second ADD", p.Result.Interfaces[0].Mac, i.Mac)
	endpointtest.Must(t, p.Do(spec.Del))
	p.Conf += `, "dns": {"search": []}`
	endpointtest.Must(t, p.Do(spec.Add))
	w.Want("DNS of the configuration", strings.Join(p.Result.DNS.Nameservers, " "), "")
	endpointtest.Must(t, p.Do(spec.Del))
}

// The IPv6 address answers at once, because the kernel does not look for duplicates.
func TestIPv6AtOnce(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("p", both)
	p.Sysctl("net/ipv6/conf/default/accept_dad", "1")
	p.Sysctl("net/ipv6/conf/default/dad_transmits", "30") // the detection of duplicates would take this many seconds
	start := time.Now()
	endpointtest.Must(t, p.Do(spec.Add))
	p.Serve("tcp", "[fd09::5]:80")
	w.Want("from the container itself", p.Ask("tcp", "[fd09::5]:80"), "p fd09::5")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("ADD and first answer took %v", took)
	}
}

func TestCheck(t *testing.T) {
	nettest.Need(t, nettest.Dummy())
	for text, damage := range map[string]func(p *endpointtest.Pod) error{
		"Interface eth0 is down":          func(p *endpointtest.Pod) error { return p.Conn().LinkSetDown(p.Link("eth0")) },
		"prevResult: eth0 not found":      func(p *endpointtest.Pod) error { return p.Conn().LinkDel(p.Link("eth0")) },
		"Failed to match addr fd09::5/64": func(p *endpointtest.Pod) error { return p.Conn().AddrDel(p.Link("eth0"), address(t)) },
		"Expected Route {10.77.0.0/16": func(p *endpointtest.Pod) error {
			return p.Conn().RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 77, 0, 0}, Mask: net.CIDRMask(16, 32)}})
		},
		"doesn't match container Mac": func(p *endpointtest.Pod) error {
			return p.Conn().LinkSetHardwareAddr(p.Link("eth0"), net.HardwareAddr{2, 0, 0, 0, 0, 9})
		},
		"not of type dummy": func(p *endpointtest.Pod) error {
			if err := p.Conn().LinkDel(p.Link("eth0")); err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "eth0"
			return p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		},
	} {
		t.Run(text, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("a", both).Add()
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, damage(p))
			w.Fails(p.Do(spec.Check), text)
		})
	}
}

func address(t *testing.T) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr("fd09::5/64")
	endpointtest.Must(t, err)
	return a
}

// If the kernel has no dummy devices, or if anything else fails, nothing is left.
func TestFails(t *testing.T) {
	w := endpointtest.New(t, &Plugin, &static.Plugin)
	p := w.Pod("a", `"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}], "routes": [{"dst": "10.7.0.0/16", "gw": "192.0.2.9"}]}`)
	err := p.Do(spec.Add)
	if nettest.Dummy().Probe() == nil {
		w.Fails(err, "failed to add route '10.7.0.0/16 via 192.0.2.9 dev eth0")
	} else {
		w.Fails(err, "the kernel has no dummy")
	}
	if _, err := p.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Error("the device stays:", err)
	}
	w.Pod("b", `"x": 1`).Refused("dummy interface requires an IPAM configuration")
	w.Fails(w.Pod("c", `"x": 1`).Do(spec.Status), "dummy interface requires an IPAM configuration")
	w.Fails(w.Pod("d", both).Do(spec.Check), "Required prevResult missing")
}
