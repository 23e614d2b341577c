// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func newWorld(t *testing.T) *endpointtest.World {
	return endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
}

const dual = `"ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
	"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`

func TestTraffic(t *testing.T) { newWorld(t).Masquerades(dual + `, "ipMasq": true`) }

// Each address has the full prefix length. Packets to the outside are masqueraded for the
// attachment that asks for it, and for no other.
func TestSingleAddresses(t *testing.T) {
	w := newWorld(t)
	ipam := func(n string) string {
		static := endpointtest.Static("10.9.0."+n+"/32 10.9.0.1", "fd09::"+n+"/128 fd09::1")
		return strings.TrimSuffix(static, "}") + `, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	}
	masked, plain := w.Pod("a", `"ipMasq": true, `+ipam("5")).Add(), w.Pod("b", ipam("6")).Add()
	for n, outside := range []string{node.Client4, node.Client6} {
		at := endpointtest.Join(outside, "80")
		w.Client.Serve("tcp", at)
		w.Want("masqueraded", masked.Ask("tcp", at), "client "+[]string{node.Uplink4, node.Uplink6}[n])
		w.Want("plain", plain.Ask("tcp", at), "client "+plain.IP(n))
		masked.Serve("tcp", endpointtest.Join(masked.IP(n), "80"))
		w.Want("from the plain to the masqueraded", plain.Ask("tcp", endpointtest.Join(masked.IP(n), "80")), "a "+plain.IP(n))
	}
	endpointtest.Must(t, masked.Do(spec.Check))
	endpointtest.Must(t, masked.Do(spec.Del))
	w.Want("the plain one after the other's DEL", plain.Ask("tcp", endpointtest.Join(node.Client4, "80")), "client "+plain.IP(0))
}

// IPv6 causes no wait. The ADD does not take longer, and the first connection works at once. That
// holds from the host too, for whose link-local address the kernel would look for duplicates.
func TestIPv6AtOnce(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("p", `"ipMasq": true, `+endpointtest.Static("fd09::5/64 fd09::1"))
	for _, s := range []*node.Space{w.Host, p.Space} {
		s.Sysctl("net/ipv6/conf/all/accept_dad", "1")
		s.Sysctl("net/ipv6/conf/default/accept_dad", "1")
		s.Sysctl("net/ipv6/conf/default/dad_transmits", "30") // this many seconds are longer than any delay on a busy machine
	}
	start := time.Now()
	p.Add()
	p.Serve("tcp", "[fd09::5]:80")
	w.Want("host to container", w.Host.Ask("tcp", "[fd09::5]:80"), "p fd09::1")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("ADD and first answer took %v", took)
	}
}

// The routes are the reference's.
func TestRoutes(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", endpointtest.Static("10.9.0.5/24 10.9.0.1", "10.9.0.6/24 10.9.0.1", "fd09::5/64 fd09::1")).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	eth0 := p.Link("eth0").Attrs().Index
	want(t, "container", routes(t, p.Space, eth0), []string{
		"10.9.0.0/24 via 10.9.0.1 src 10.9.0.5 universe", "10.9.0.1/32 via <nil> src 10.9.0.5 link",
		"fd09::/64 via fd09::1 src fd09::5 universe", "fd09::1/128 via <nil> src fd09::5 universe",
	})
	host := w.HostLink(p.Result.Interfaces[atHost].Name).Attrs().Index
	want(t, "host", routes(t, w.Host, host), []string{
		"10.9.0.5/32 via <nil> src <nil> host", "10.9.0.6/32 via <nil> src <nil> host", "fd09::5/128 via <nil> src <nil> universe",
	})
}

func routes(t *testing.T, s *node.Space, index int) (list []string) {
	t.Helper()
	all, err := s.Conn().RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	endpointtest.Must(t, err)
	for _, r := range all {
		if !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
			list = append(list, r.Dst.String()+" via "+text(r.Gw)+" src "+text(r.Src)+" "+r.Scope.String())
		}
	}
	slices.Sort(list)
	return list
}

func text(ip net.IP) string {
	if ip == nil {
		return "<nil>"
	}
	return ip.String()
}

func want(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// An attachment is just being removed. Its route does not get the traffic of the address's next
// owner.
func TestAddressTaken(t *testing.T) {
	w := newWorld(t)
	conf := endpointtest.Static("10.9.0.5/24 10.9.0.1")
	w.Pod("old", conf).Add()
	p := w.Pod("new", conf).Add()
	p.Serve("tcp", "10.9.0.5:80")
	w.Want("host to the new container", w.Host.Ask("tcp", "10.9.0.5:80"), "new 10.9.0.1")
}

func TestCheck(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", dual+`, "ipMasq": true`).Add()
	p.Call.NetNS = "/run/../run/netns/a"
	endpointtest.Must(t, p.Do(spec.Check))
	for _, damage := range []struct {
		text string
		do   func() error
	}{
		{"Expected Route {" + p.IP(0) + "/32", func() error {
			return w.HostConn().RouteDel(&netlink.Route{Dst: ipNet(p.IP(0) + "/32"), Scope: netlink.SCOPE_HOST})
		}},
		{"Expected Route {0.0.0.0/0", func() error { return p.Conn().RouteDel(&netlink.Route{Dst: ipNet("0.0.0.0/0")}) }},
		{"Failed to match addr 10.9.0.1/32", func() error {
			return w.HostConn().AddrDel(w.HostLink(p.Result.Interfaces[atHost].Name), &netlink.Addr{IPNet: ipNet("10.9.0.1/32")})
		}},
		{"not found", func() error { return p.Conn().LinkDel(p.Link("eth0")) }},
	} {
		endpointtest.Must(t, damage.do())
		w.Fails(p.Do(spec.Check), damage.text)
	}
}

func ipNet(s string) *net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.Pod("a", endpointtest.Static("10.9.0.5/24")).Refused("IPAM plugin returned no gateway for 10.9.0.5/24")
	w.Fails(w.Pod("b", endpointtest.Static("10.9.0.5/24 10.9.0.1")).Do(spec.Check), "Required prevResult missing")
}
