// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/enforce"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// serving is a node with the Service shop/web at 10.96.0.1:80 and at the node port 30080 of 192.0.2.1.
type serving struct {
	*bench
	state *services.State
}

func newServing(t *testing.T) *serving {
	b := newBench(t)
	uplink := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}}
	b.must(netlink.LinkAdd(uplink))
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	b.must(err)
	b.must(netlink.AddrAdd(uplink, addr))
	b.must(netlink.LinkSetUp(uplink))
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: netip.MustParseAddr("192.0.2.254").AsSlice()}))
	name := services.Name{Namespace: "shop", Name: "web"}
	s := &serving{bench: b, state: &services.State{
		Node:      services.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Services: map[services.Name]*services.Service{name: {
			Name: name, Type: "NodePort", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []services.ServicePort{{Name: "http", Protocol: l4.TCP, Number: 80, NodePort: 30080}},
		}},
		Slices: map[services.Name][]*services.Slice{name: {{Name: "web-1", Service: name, Ports: []services.SlicePort{{Name: "http", Protocol: l4.TCP, Number: 8080}}}}},
	}}
	for _, a := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		slice := s.state.Slices[name][0]
		slice.Endpoints = append(slice.Endpoints, services.SliceEndpoint{Address: netip.MustParseAddr(a), Node: "n1", Ready: true, Serving: true})
	}
	s.load()
	return s
}

// load makes the table what the state says.
func (s *serving) load() {
	s.Helper()
	fw := nft.Open(s.TempDir())
	e := enforce.New(fw, enforce.Options{})
	p, err := e.Compile(s.state)
	s.must(err)
	s.must(e.Load(context.Background(), p))
	s.must(fw.Close())
}

func (s *serving) nft(args ...string) {
	s.Helper()
	if out, err := exec.Command("nft", args...).CombinedOutput(); err != nil {
		s.Fatalf("nft %q: %v: %s", args, err, out)
	}
}

// expect fails unless the check finds what begins with these texts, in this order.
func (s *serving) expect(about string, want ...string) {
	s.Helper()
	var got []string
	for _, f := range s.check("services") {
		got = append(got, string(f.Level)+": "+f.What)
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		s.Errorf("%s: got %q, want %q", about, got, want)
	}
}

// TestServices harms a table of Services in each way that doctor knows.
func TestServices(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	s := newServing(t)
	s.expect("nothing is wrong")

	s.nft("delete element inet patchbay_services many4_4 { 10.96.0.1 . tcp . 80 . 2 }")
	s.expect("a slot is missing", "problem: some connections to Services find no endpoint, because slots of their endpoints are missing: 10.96.0.1:80/tcp")
	s.wait = func(time.Duration) { s.wait = nil; s.load() }
	s.expect("the agent restores it while doctor waits")
	s.nft("delete element inet patchbay_services vips4 { 10.96.0.1 }")
	s.expect("an address is missing", "problem: packets to Services are not looked at, because the address is missing in vips4 or vips6: 10.96.0.1:80/tcp")
	s.load()

	s.state.CIDRs = nil
	s.load()
	s.expect("no ServiceCIDR", "warning: cluster IPs are in no ServiceCIDR that this node knows, so packets to addresses that no Service has leave the node instead of being dropped: 10.96.0.1")
	s.state.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	s.state.Options.NodePorts, s.state.Addresses = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, nil
	s.load()
	s.expect("no address has node ports", "problem: node ports are at no address of this node: IPv4")
	s.state.Options.NodePorts, s.state.Node.Addresses = nil, []netip.Addr{netip.MustParseAddr("192.0.2.77")}
	s.load()
	s.expect("an address of another machine", "warning: node ports are at addresses that this node does not have: 192.0.2.77")
	s.state.Node.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	s.load()

	uplink, err := netlink.LinkByName("uplink")
	s.must(err)
	gateway := &netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: netip.MustParseAddr("192.0.2.254").AsSlice()}
	s.must(netlink.RouteDel(gateway))
	s.expect("no route", "problem: this node has no route to cluster IPs, so its own programs do not reach Services: 10.96.0.1")
	s.must(netlink.RouteAdd(gateway))

	s.nft("insert rule inet patchbay_services vip4 accept")
	s.expect("a rule of somebody else", "problem: what the table inet patchbay_services does with packets to Services is not known: it has other rules in the chains vip4")
	s.load()
	s.nft("delete element inet patchbay_services revision { " + s.revision() + " }")
	s.expect("no revision", "problem: what the table inet patchbay_services does with packets to Services is not known: it has no revision")
	s.nft("add element inet patchbay_services revision { 77 . 1 }")
	s.expect("another layout", "problem: what the table inet patchbay_services does with packets to Services is not known: it has the layout 77, and this release of patchbay knows only 1")
}

// revision returns the element that each transaction replaces.
func (s *serving) revision() string {
	out, err := exec.Command("nft", "list", "set", "inet", "patchbay_services", "revision").Output()
	s.must(err)
	_, after, _ := strings.Cut(string(out), "elements = {")
	element, _, _ := strings.Cut(after, "}")
	return element
}

// TestForeignTranslations puts rules of other programs beside Services.
func TestForeignTranslations(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	s := newServing(t)
	table := func(text string) {
		s.Helper()
		s.nft("add table ip foreign; delete table ip foreign; " + text)
	}
	const chain = "table ip foreign { chain pre { type nat hook prerouting priority -100; %; }; }"
	rule := func(text string) { s.Helper(); table(strings.Replace(chain, "%", text, 1)) }
	rule("ip daddr 10.96.0.1 tcp dport 80 dnat to 10.9.9.9:80")
	s.expect("its address", "problem: rule 1 of chain pre of table ip foreign translates packets to 10.96.0.1:80/tcp, which is a Service's, and may do so first")
	rule("ip daddr 10.96.0.1 tcp dport 81 dnat to 10.9.9.9:80")
	s.expect("another port of its address")
	rule("ip daddr 10.96.0.1 udp dport 80 dnat to 10.9.9.9:80")
	s.expect("another protocol")
	rule("fib daddr type local tcp dport 30080 dnat to 10.9.9.9:80")
	s.expect("a node port", "problem: rule 1 of chain pre of table ip foreign translates packets to node port 30080/tcp")
	rule("ip daddr 192.0.2.9 tcp dport 30080 dnat to 10.9.9.9:80")
	s.expect("the same port of another address")
	rule("ip daddr { 10.96.0.1, 10.96.0.2 } tcp dport 80 redirect to :8080")
	s.expect("a set of addresses", "problem: rule 1 of chain pre of table ip foreign translates packets to 10.96.0.1:80/tcp")
	rule("ip daddr 10.96.0.1 tcp dport 80 accept")
	s.expect("no translation")
	table(strings.Replace(strings.Replace(chain, "%", "ip daddr 10.96.0.1 dnat to 10.9.9.9", 1), "-100", "-50", 1))
	s.expect("after Services")
	s.nft("delete table ip foreign")
}

// TestForeignTranslationsOfIptables: eval does not know the ports of iptables' matches, as Docker's rules have them.
func TestForeignTranslationsOfIptables(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	s := newServing(t)
	iptables := func(args string) {
		s.Helper()
		if out, err := exec.Command("iptables-nft", strings.Fields("-t nat "+args)...).CombinedOutput(); err != nil {
			s.Fatalf("iptables-nft %s: %v: %s", args, err, out)
		}
	}
	iptables("-N DOCKER")
	iptables("-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER")
	iptables("-A DOCKER ! -i docker0 -p tcp -m tcp --dport 30081 -j DNAT --to-destination 172.17.0.2:80")
	s.expect("another port")
	iptables("-A DOCKER ! -i docker0 -p tcp -m tcp --dport 30080 -j DNAT --to-destination 172.17.0.2:80")
	s.expect("the port of a Service", "problem: rule 2 of chain DOCKER of table ip nat translates packets to node port 30080/tcp, which is a Service's")
}

// TestKubeProxyBeside: kube-proxy in each of its modes is seen.
func TestKubeProxyBeside(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	s := newServing(t)
	const beside = "problem: kube-proxy's rules are beside those of patchbay, and the older ones translate a packet first: "
	s.nft("add table ip6 kube-proxy")
	s.expect("nftables", beside+"table ip6 kube-proxy")
	s.nft("delete table ip6 kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES")
	s.expect("iptables", beside+"chain KUBE-SERVICES of table ip nat")
	s.nft("delete table ip nat")
	s.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0"}}))
	s.expect("ipvs", "problem: kube-proxy in mode ipvs gave the addresses of Services to the link kube-ipvs0")
}
