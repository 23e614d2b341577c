// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// town is the node n1 with the pods a and b, a pod of another node, which is in the namespace of the router, and a client outside. Each
// pod has a link of its own, so that its packets to other pods pass the node.
//
//	client 198.51.100.2 -- router 10.2.0.7 -- 192.0.2.1 node -- a 10.1.0.6
//	                                                       \-- b 10.1.0.10
type town struct {
	*node.Node
	t    testing.TB
	a, b *node.Space
	fw   *nft.Conn
	enf  *Enforcer
	sent int // transactions

	state   *services.State
	program *services.Program
}

// endpoints are where all pods listen, TCP and UDP.
var endpoints = map[string][2]string{
	"a": {"10.1.0.6", "fd00:1::6"}, "b": {"10.1.0.10", "fd00:1::a"}, "router": {"10.2.0.7", "fd00:2::7"},
	"host": {node.Uplink4, node.Uplink6}, // a pod in the node's network
}

func newTown(t testing.TB) *town {
	must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) // another test's client may have had the same port
	w := &town{Node: node.New(t), t: t, state: &services.State{
		Node:      services.Node{Name: "n1", Addresses: addrs(node.Uplink4, node.Uplink6), Pods: prefixes("10.1.0.0/24", "fd00:1::/64")},
		Addresses: addrs(node.Uplink4, node.Uplink6, "10.1.0.5", "10.1.0.9", "fd00:1::5", "fd00:1::9"),
		CIDRs:     prefixes("10.96.0.0/16", "fd00:96::/112"),
		Services:  make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice),
	}}
	w.a = w.pod("a", "10.1.0.5", "fd00:1::5")
	w.b = w.pod("b", "10.1.0.9", "fd00:1::9")
	w.Router.Address("lo", "10.2.0.7/32", "fd00:2::7/128")
	w.Router.Route("203.0.113.0/24", node.Uplink4)
	for _, s := range []*node.Space{w.a, w.b, w.Router, w.Host} {
		for _, addr := range endpoints[s.Name] {
			at := net.JoinHostPort(addr, "8080")
			s.Serve("tcp", at)
			s.Serve("udp", at)
		}
	}
	w.fw = nft.Open(t.TempDir())
	w.enf = w.enforcer()
	t.Cleanup(func() {
		if err := errors.Join(w.enf.Remove(context.Background()), w.fw.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *town) enforcer() *Enforcer {
	return New(w.fw, Options{Committed: func(time.Duration) { w.sent++ }})
}

func (w *town) pod(name, gateway4, gateway6 string) *node.Space {
	s := w.Space(name)
	node.Join(w.Host, "v"+name, s, "eth0")
	w.Host.Address("v"+name, gateway4+"/30", gateway6+"/126")
	s.Address("eth0", endpoints[name][0]+"/30", endpoints[name][1]+"/126")
	s.Default("eth0", gateway4, gateway6)
	return s
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// service makes a Service with a cluster IP of each family, and endpoints: "a b". Its port is 80, TCP and UDP.
func (w *town) service(number int, pods string, more ...func(*services.Service)) {
	name := services.Name{Namespace: "shop", Name: fmt.Sprint("s", number)}
	s := &services.Service{
		Name: name, Type: "LoadBalancer", ClusterIPs: addrs(vip(number), vip6(number)),
		Ports: []services.ServicePort{{Name: "t", Protocol: l4.TCP, Number: 80}, {Name: "u", Protocol: l4.UDP, Number: 80}},
	}
	for _, m := range more {
		m(s)
	}
	w.state.Services[name] = s
	w.state.Slices[name] = nil
	for i, v6 := range []bool{false, true} {
		slice := &services.Slice{
			Name: fmt.Sprint("slice", i), Service: name, IPv6: v6,
			Ports: []services.SlicePort{{Name: "t", Protocol: l4.TCP, Number: 8080}, {Name: "u", Protocol: l4.UDP, Number: 8080}},
		}
		for _, pod := range strings.Fields(pods) {
			on := map[bool]string{true: "n2", false: "n1"}[pod == "router"]
			slice.Endpoints = append(slice.Endpoints, services.SliceEndpoint{Address: netip.MustParseAddr(endpoints[pod][i]), Node: on, Ready: true, Serving: true})
		}
		w.state.Slices[name] = append(w.state.Slices[name], slice)
	}
}

func vip(number int) string  { return fmt.Sprint("10.96.0.", number) }
func vip6(number int) string { return fmt.Sprintf("fd00:96::%x", number) }

// tcp returns the address of a port 80.
func tcp(addr string) string { return net.JoinHostPort(addr, "80") }

// load compiles the state over what the kernel has, and loads it.
func (w *town) load() {
	w.t.Helper()
	var err error
	if w.program, err = w.enf.Compile(w.state); err == nil {
		err = w.enf.Load(w.t.Context(), w.program)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// update applies a change of one Service.
func (w *town) update(number int) {
	w.t.Helper()
	change := w.program.Update(w.state, services.Name{Namespace: "shop", Name: fmt.Sprint("s", number)})
	if err := w.enf.Apply(w.t.Context(), w.program, change); err != nil {
		w.t.Fatal(err)
	}
}

// hears asks until all of the answers were heard, and fails if there is another one.
func hears(t *testing.T, who *node.Space, network, to string, want ...string) {
	t.Helper()
	heard := make(map[string]bool)
	for range 100 {
		answer := who.Ask(network, to)
		if heard[answer] = true; !slices.Contains(want, answer) {
			t.Errorf("%s asked %s %s and heard %q, want one of %q", who.Name, network, to, answer, want)
			return
		}
		if len(heard) == len(want) {
			return
		}
	}
	t.Errorf("%s asked %s %s 100 times and heard only %v of %q", who.Name, network, to, heard, want)
}

// refused fails unless a client is refused, or gets no answer. To a program of the node the kernel says at once that it has not sent a
// datagram.
func refused(t *testing.T, who *node.Space, network, to, want string) {
	t.Helper()
	answer := who.AskBriefly(network, to)
	if answer != want && !(who.Name == "host" && network == "udp" && strings.Contains(answer, "not permitted")) {
		t.Errorf("%s asked %s %s and heard %q, want %q", who.Name, network, to, answer, want)
	}
}

// TestPackets sends real packets from a pod, from the node and from outside.
func TestPackets(t *testing.T) {
	w := newTown(t)
	balancer := func(addr string) func(*services.Service) {
		return func(s *services.Service) { s.Balancers = addrs(addr) }
	}
	w.service(1, "b")
	w.service(2, "a b router")
	w.service(3, "a")
	w.service(4, "b", balancer("203.0.113.4"), func(s *services.Service) { s.Restricted, s.Sources = true, prefixes("198.51.100.0/24") })
	w.service(5, "b router", balancer("203.0.113.5"), func(s *services.Service) { s.ExternalLocal, s.Ports[0].NodePort = true, 30005 })
	w.service(6, "a b router", func(s *services.Service) { s.Ports[0].NodePort = 30006 })
	w.service(7, "")
	w.service(8, "router", func(s *services.Service) { s.InternalLocal = true })
	w.service(9, "router", balancer("203.0.113.9"), func(s *services.Service) { s.ExternalLocal = true })
	w.service(10, "host")
	w.load()

	for _, network := range []string{"tcp", "udp"} {
		hears(t, w.a, network, tcp(vip(1)), "b 10.1.0.6")
		hears(t, w.a, network, tcp(vip6(1)), "b fd00:1::6")
		hears(t, w.Host, network, tcp(vip(1)), "b 10.1.0.9")
		hears(t, w.Host, network, tcp(vip6(1)), "b fd00:1::9")
		hears(t, w.Client, network, tcp(vip(1)), "b 10.1.0.9")
		hears(t, w.Client, network, tcp(vip6(1)), "b fd00:1::9")
		hears(t, w.b, network, tcp(vip(2)), "a 10.1.0.10", "b 10.1.0.9", "router 10.1.0.10")
		hears(t, w.b, network, tcp(vip6(2)), "a fd00:1::a", "b fd00:1::9", "router fd00:1::a")
		hears(t, w.Client, network, tcp(vip(2)), "a 10.1.0.5", "b 10.1.0.9", "router 192.0.2.1")
		hears(t, w.a, network, tcp(vip(10)), "host 10.1.0.6")
		hears(t, w.Client, network, tcp(vip6(10)), "host "+node.Client6)
		if answer := w.Host.Ask(network, tcp(vip(10))); !strings.HasPrefix(answer, "host ") {
			t.Errorf("the node asked itself by %s and heard %q", network, answer)
		}
		for _, who := range []*node.Space{w.a, w.Host, w.Client} {
			refused(t, who, network, tcp(vip(7)), "refused")
			refused(t, who, network, tcp(vip6(7)), "refused")
			refused(t, who, network, net.JoinHostPort(vip(1), "81"), "refused")
		}
		refused(t, w.a, network, tcp(vip(8)), "timeout")
		refused(t, w.Host, network, tcp(vip6(8)), "timeout")
		refused(t, w.Client, network, tcp(vip(99)), "timeout")
		w.Client.Expect("an allowed source", network, tcp("203.0.113.4"), "b 10.1.0.9")
		w.a.Expect("a source that is not allowed", network, tcp("203.0.113.4"), "timeout")
		hears(t, w.Client, network, tcp("203.0.113.5"), "b 198.51.100.2")
		hears(t, w.a, network, tcp("203.0.113.5"), "b 10.1.0.6", "router 10.1.0.6")
		hears(t, w.Host, network, tcp("203.0.113.5"), "b 10.1.0.9", "router 192.0.2.1")
		w.Client.Expect("none on this node, from outside", network, tcp("203.0.113.9"), "timeout")
		hears(t, w.a, network, tcp("203.0.113.9"), "router 10.1.0.6")
	}
	for _, network := range []string{"tcp", "udp"} { // last, because the kernel also sends a redirect, and then no error for a second
		hears(t, w.a, network, tcp(vip(3)), "a 10.1.0.5")
		hears(t, w.a, network, tcp(vip6(3)), "a fd00:1::5")
	}
	for _, at := range []string{node.Uplink4, node.Uplink6} {
		v6 := strings.Contains(at, ":")
		from := map[bool][]string{false: {"a 10.1.0.5", "b 10.1.0.9", "router 192.0.2.1"}, true: {"a fd00:1::5", "b fd00:1::9", "router 2001:db8:1::1"}}[v6]
		hears(t, w.Client, "tcp", net.JoinHostPort(at, "30006"), from...)
		hears(t, w.a, "tcp", net.JoinHostPort(at, "30006"), from...)
		hears(t, w.Host, "tcp", net.JoinHostPort(at, "30006"), from...)
		hears(t, w.Client, "tcp", net.JoinHostPort(at, "30005"), map[bool]string{false: "b " + node.Client4, true: "b " + node.Client6}[v6])
	}
}

// A client with affinity goes on to its endpoint until it has been silent for the timeout, or the endpoint is not used any more.
func TestAffinity(t *testing.T) {
	w := newTown(t)
	sticky := func(s *services.Service) { s.Affinity = 2 }
	w.service(1, "a b router", sticky, func(s *services.Service) { s.Ports[0].NodePort = 30001 })
	w.load()
	for _, at := range []string{tcp(vip(1)), tcp(vip6(1)), node.Uplink4 + ":30001"} {
		first := w.Client.Ask("tcp", at)
		for range 8 {
			w.Client.Expect("again", "tcp", at, first)
		}
		if n := w.memories(strings.Contains(at, "[")); n == 0 {
			t.Errorf("%s: nothing is remembered", at)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for w.memories(false)+w.memories(true) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("memories do not expire")
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.service(2, "host", sticky) // whose packets end in the hook input
	w.update(2)
	w.Client.Expect("an endpoint on the node", "tcp", tcp(vip(2)), "host "+node.Client4)
	if n := w.memories(false); n != 1 {
		t.Errorf("%d memories of an endpoint on the node", n)
	}
	w.service(2, "")
	w.update(2)
	w.service(1, "a b router", func(s *services.Service) { s.Affinity = 10800 })
	w.update(1)
	first := w.a.Ask("tcp", tcp(vip(1)))
	others := slices.DeleteFunc([]string{"a", "b", "router"}, func(pod string) bool { return strings.HasPrefix(first, pod+" ") })
	w.service(1, strings.Join(others, " "), func(s *services.Service) { s.Affinity = 10800 })
	w.update(1)
	if n := w.memories(false); n != 0 {
		t.Errorf("%d memories of an endpoint that has left", n)
	}
	if again := w.a.Ask("tcp", tcp(vip(1))); again == first || strings.Contains(again, "timeout") {
		t.Errorf("after %q has left, heard %q", first, again)
	}
	if err := w.enf.Settle(t.Context()); err != nil {
		t.Error(err)
	}
	if n := w.memories(false); n != 1 {
		t.Errorf("%d memories, want that of the endpoint that stays", n)
	}
}

// A pod that is its own endpoint leaves the Service while a packet of it is on its way: the packet drew the pod before the change, as a rule of
// the test does here, and meets the masquerade after it.
func TestLeavesItself(t *testing.T) {
	w := newTown(t)
	w.service(1, "a b")
	w.load()
	w.service(1, "b")
	w.update(1)
	command := func(text string) {
		if out, err := exec.Command("nft", text).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", text, err, out)
		}
	}
	command(fmt.Sprintf("table ip drew { chain c { type nat hook prerouting priority -101; ip daddr %s tcp dport 80 dnat to 10.1.0.6:8080; }; }", vip(1)))
	w.a.Expect("a packet that drew its pod", "tcp", tcp(vip(1)), "a 10.1.0.5")
	command("delete table ip drew")
	for _, pods := range []string{"a b", "b"} { // it comes back and leaves again
		w.service(1, pods)
		w.update(1)
	}
	for range 2 { // the second one finds nothing to do
		if err := w.enf.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	must(t, w.fw.EachElement("hairpin4", func(key, _ []byte, _ bool) { left = append(left, net.IP(key[:4]).String()) }))
	if !slices.Equal(left, []string{"10.1.0.10"}) {
		t.Errorf("after a while, %v may come back to themselves", left)
	}
}

func (w *town) memories(ipv6 bool) (n int) {
	if err := w.fw.EachElement(nft.AffinityMap(ipv6), func(_, _ []byte, _ bool) { n++ }); err != nil {
		w.t.Error(err)
	}
	return n
}

// A restart changes nothing if nothing has changed, and else only what has. A flushed ruleset is noticed and restored, and a saved one
// that is loaded again, which has old endpoints, is corrected.
func TestRestart(t *testing.T) {
	w := newTown(t)
	w.service(1, "a b")
	w.service(2, "a b router", func(s *services.Service) { s.Ports[0].NodePort, s.ExternalLocal = 30002, true })
	w.service(3, "")
	w.load()
	expect := func(about string, transactions int) {
		t.Helper()
		if w.sent != transactions {
			t.Errorf("%s: %d transactions, want %d", about, w.sent, transactions)
		}
		w.sent = 0
	}
	expect("from nothing", 2)
	for range 3 { // slots that no program would choose anew
		w.service(1, "a router b")
		w.update(1)
		w.service(1, "b a")
		w.update(1)
	}
	w.sent = 0
	restart := func() { t.Helper(); w.enf = w.enforcer(); w.load() }
	restart()
	expect("restarted", 0)
	saved := filepath.Join(t.TempDir(), "saved")
	nft := func(args ...string) []byte {
		t.Helper()
		out, err := exec.Command("nft", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("nft %q: %v: %s", args, err, out)
		}
		return out
	}
	if err := os.WriteFile(saved, append([]byte("flush ruleset\n"), nft("list", "ruleset")...), 0o600); err != nil {
		t.Fatal(err)
	}
	w.service(1, "b")
	w.service(3, "a")
	restart()
	expect("two Services differ", 2)
	hears(t, w.a, "tcp", tcp(vip(1)), "b 10.1.0.6")

	flush(t)
	if err := w.enf.Check(); !errors.Is(err, ErrChanged) {
		t.Errorf("flushed, Check says %v", err)
	}
	w.service(3, "a b")
	w.update(3)
	hears(t, w.a, "tcp", tcp(vip(1)), "b 10.1.0.6")
	hears(t, w.a, "udp", tcp(vip(3)), "a 10.1.0.5", "b 10.1.0.6")
	nft("-f", saved)
	if err := w.enf.Check(); !errors.Is(err, ErrChanged) {
		t.Errorf("an old ruleset was loaded, Check says %v", err)
	}
	if err := w.enf.Load(t.Context(), w.program); err != nil {
		t.Fatal(err)
	}
	hears(t, w.a, "tcp", tcp(vip(1)), "b 10.1.0.6")
	nft("flush", "chain", "inet", "patchbay_services", "services4")
	w.enf.Forget()
	if err := w.enf.Load(t.Context(), w.program); err != nil {
		t.Fatal(err)
	}
	hears(t, w.a, "tcp", tcp(vip(1)), "b 10.1.0.6")
	if err := w.enf.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.enf.Remove(t.Context()); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if answer := w.a.AskBriefly("tcp", tcp(vip(1))); strings.HasPrefix(answer, "b ") {
		t.Errorf("removed, a hears %q", answer)
	}
}

// If the agent dies between two transactions, the next one does the rest.
func TestKilled(t *testing.T) {
	w := newTown(t)
	w.service(1, "a b router")
	w.service(2, "a b")
	w.load()
	w.service(1, "b")
	w.service(2, "")
	change := w.program.Update(w.state, services.Name{Namespace: "shop", Name: "s1"}, services.Name{Namespace: "shop", Name: "s2"})
	if err := w.enf.steps(t.Context(), change.Steps[:len(change.Steps)/2]); err != nil {
		t.Fatal(err)
	}
	w.enf = w.enforcer()
	w.load()
	hears(t, w.a, "tcp", tcp(vip(1)), "b 10.1.0.6")
	refused(t, w.a, "tcp", tcp(vip(2)), "refused")
	w.sent = 0
	w.enf = w.enforcer()
	if w.load(); w.sent != 0 {
		t.Errorf("%d transactions, although all is right", w.sent)
	}
}

func flush(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A flow of UDP whose endpoint is not serving any more goes to another one, also if the client keeps its port.
func TestFlows(t *testing.T) {
	w := newTown(t)
	nodePort := func(s *services.Service) { s.Ports[1].NodePort = 30001 }
	w.service(1, "a", nodePort)
	w.load()
	at := map[string]string{vip(1) + ":80": "10.1.0.10:7001", "[" + vip6(1) + "]:80": "[fd00:1::a]:7002", node.Uplink4 + ":30001": "10.1.0.10:7003"}
	ask := func(pod string) {
		t.Helper()
		for to, from := range at {
			if answer := w.b.AskFrom("udp", from, to); !strings.HasPrefix(answer, pod+" ") {
				t.Errorf("%s from %s: %s, want %s", to, from, answer, pod)
			}
		}
	}
	ask("a")
	w.service(1, "router", nodePort)
	w.update(1)
	ask("router")
	w.service(1, "a router", nodePort)
	w.update(1)
	ask("router")
}

// While endpoints come and go, no connection to one that stays is lost, and none begins at one that has left.
func TestChangeUnderLoad(t *testing.T) {
	w := newTown(t)
	w.service(1, "b router")
	w.load()
	stop, failed := make(chan bool), make(chan string, 1)
	go func() {
		defer close(failed)
		for n := 0; ; n++ {
			select {
			case <-stop:
				if n < 20 {
					failed <- fmt.Sprint("only ", n, " connections")
				}
				return
			default:
			}
			if answer := w.a.Ask("tcp", tcp(vip(1))); answer != "b 10.1.0.6" && answer != "router 10.1.0.6" && answer != "a 10.1.0.5" {
				failed <- answer
				return
			}
		}
	}()
	for i := range 60 {
		w.service(1, []string{"b router a", "b a", "router b", "a b router", "b"}[i%5])
		w.update(1)
		if i%5 == 4 {
			hears(t, w.Host, "tcp", tcp(vip(1)), "b 10.1.0.9")
		}
	}
	close(stop)
	if answer, ok := <-failed; ok {
		t.Errorf("a connection was lost: %s", answer)
	}
}
