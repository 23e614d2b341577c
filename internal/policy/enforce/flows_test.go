// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// pair is two pods of one node, shop/a (the client) and shop/b (the server).
type pair struct {
	*town
	node           *house
	client, server *house
	enforcer       *Enforcer
}

func newPair(t testing.TB, opts Options) *pair {
	w := newTown(t)
	return w.pair(opts, w.join)
}

// pair makes the pods, each connected to the node.
func (w *town) pair(opts Options, connect func(*house, string, *house, string)) *pair {
	t := w.t
	p := &pair{town: w, node: w.nodes[0], client: w.house("client"), server: w.house("server"), enforcer: New(nft.Open(t.TempDir()), opts)}
	s := shop(t)
	for i, h := range []*house{p.client, p.server} {
		connect(h, "eth0", p.node, fmt.Sprint("v", i))
		l, err := h.Link("eth0")
		must(t, err)
		for _, a := range s.Pods[i].Addresses {
			must(t, h.AddrReplace(l, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
			must(t, h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix(netip.PrefixFrom(unspecified(a), 0))}))
			p.node.route(t, a, fmt.Sprint("v", i))
		}
	}
	return p
}

func (p *pair) load(policies ...string) {
	p.t.Helper()
	program := policy.Compile(shop(p.t, policies...))
	must(p.t, p.node.Do(func() error { return p.enforcer.Load(p.t.Context(), program, nil) }))
}

// serve answers each line, and sends a line by itself every 5 ms if it got "push".
func (p *pair) serve(addr string) {
	var l net.Listener
	must(p.t, p.server.Do(func() (err error) { l, err = net.Listen("tcp", addr); return err }))
	p.t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
}

func answer(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // a test
	for in := bufio.NewScanner(conn); in.Scan(); {
		n := 1
		if in.Text() == "push" {
			n = 10000
		}
		for range n {
			if _, err := fmt.Fprintln(conn, "line"); err != nil {
				return
			}
			if n > 1 {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

// talk is a connection of the client.
type talk struct {
	net.Conn
	in *bufio.Reader
}

func (p *pair) dial(addr string) talk { return p.dialFrom(p.client, addr) }

func (p *pair) dialFrom(h *house, addr string) talk {
	p.t.Helper()
	var conn net.Conn
	must(p.t, h.Do(func() (err error) { conn, err = net.DialTimeout("tcp", addr, 5*time.Second); return err }))
	return talk{conn, bufio.NewReader(conn)}
}

// hears reports whether a line comes within so much time.
func (c talk) hears(within time.Duration) bool {
	must2 := c.SetReadDeadline(time.Now().Add(within))
	_, err := c.in.ReadString('\n')
	return must2 == nil && err == nil
}

func (c talk) asks(within time.Duration) bool {
	_, err := fmt.Fprintln(c, "ask")
	return err == nil && c.hears(within)
}

// silence is how long a test waits for what should not come. What comes needs less than a millisecond.
const silence = 100 * time.Millisecond

// drained reads until nothing comes for a while. It returns false if that does not happen within
// some seconds.
func (c talk) drained() bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if !c.hears(silence) {
			return true
		}
	}
	return false
}

const (
	fromA80   = `{"ports":[{"port":80}],"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}`
	fromA81   = `{"ports":[{"port":81}],"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}`
	onB       = `shop/b {"podSelector":{"matchLabels":{"pod":"b"}},"ingress":[`
	onA       = `shop/a {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Egress"],"egress":[`
	toPort81  = `{"ports":[{"port":81}]}`
	toPort80s = `{"ports":[{"port":80,"endPort":81}]}`
)

// When a policy changes, connections that it denies end, also those on which only the server speaks.
// Other connections are not affected. When the policy changes back, the connection goes on.
func TestConnections(t *testing.T) {
	p := newPair(t, Options{})
	p.serve(":80")
	p.serve(":81")
	for _, side := range []struct{ name, both, one string }{
		{"ingress", onB + fromA80 + "," + fromA81 + "]}", onB + fromA81 + "]}"},
		{"egress", onA + toPort80s + "]}", onA + toPort81 + "]}"},
	} {
		for _, server := range []string{"10.1.1.2", "[fd01::1:2]"} {
			t.Run(side.name+" "+server, func(t *testing.T) {
				p.load(side.both)
				asked, pushed, other := p.dial(server+":80"), p.dial(server+":80"), p.dial(server+":81")
				defer func() { must(t, errors.Join(asked.Close(), pushed.Close(), other.Close())) }()
				fmt.Fprintln(pushed, "push") //nolint:errcheck // hears tells
				if !asked.asks(5*time.Second) || !pushed.hears(5*time.Second) || !other.asks(5*time.Second) {
					t.Fatal("a connection that is allowed does not work")
				}
				p.load(side.one)
				if asked.asks(silence) || !pushed.drained() {
					t.Error("a connection lives although the policy denies it now")
				}
				if !other.asks(5 * time.Second) {
					t.Error("a connection that the policy allows ended")
				}
				p.load(side.both)
				if !asked.hears(10 * time.Second) { // the client repeats what it sent
					t.Error("the connection does not go on")
				}
			})
		}
	}
}

// With KeepConnections, only new connections are denied.
func TestKeepConnections(t *testing.T) {
	p := newPair(t, Options{KeepConnections: true})
	p.serve(":80")
	p.load(onB + fromA80 + "]}")
	conn := p.dial("10.1.1.2:80")
	defer conn.Close() //nolint:errcheck // a test
	p.load(onB + fromA81 + "]}")
	if !conn.asks(5 * time.Second) {
		t.Error("the connection ended")
	}
}

// An isolated pod finds its neighbours, and its node reaches it.
func TestNeighbours(t *testing.T) {
	w := newTown(t)
	p := w.pair(Options{}, w.resolving)
	p.serve(":80")
	p.load(`shop/none {"podSelector":{},"policyTypes":["Ingress","Egress"]}`)
	nodeHas(t, p, "10.9.0.1", "fd09::1")
	for _, addr := range []string{"10.1.1.2:80", "[fd01::1:2]:80"} {
		conn := p.dialFrom(p.node, addr)
		if !conn.asks(5 * time.Second) {
			t.Errorf("the node does not reach %s", addr)
		}
		must(t, conn.Close())
	}
}

// nodeHas gives the node addresses on its link to the server.
func nodeHas(t *testing.T, p *pair, list ...string) {
	t.Helper()
	for _, a := range addrs(list...) {
		l, err := p.node.Link("v1")
		must(t, err)
		must(t, p.node.AddrReplace(l, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
	}
}

// An ICMP error about an allowed packet passes, even if policies deny everything that its sender sends.
func TestErrorsPass(t *testing.T) {
	p := newPair(t, Options{})
	p.load(`shop/b {"podSelector":{"matchLabels":{"pod":"b"}},"policyTypes":["Ingress","Egress"],"ingress":[{"ports":[{"port":80,"protocol":"UDP"}]}]}`)
	for _, server := range []string{"10.1.1.2", "[fd01::1:2]"} {
		for port, want := range map[string]error{":80": unix.ECONNREFUSED, ":81": os.ErrDeadlineExceeded} {
			var conn net.Conn
			must(t, p.client.Do(func() (err error) { conn, err = net.Dial("udp", server+port); return err }))
			must(t, conn.SetDeadline(time.Now().Add(500*time.Millisecond)))
			_, err := conn.Write([]byte("x"))
			must(t, err)
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
				t.Errorf("UDP to %s%s: %v, want %v", server, port, err, want)
			}
			must(t, conn.Close())
		}
	}
}

// Each packet that a policy denies is counted for it.
func TestDrops(t *testing.T) {
	p := newPair(t, Options{})
	p.load(onB+fromA80+"]}", `web {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":82}}}]}]}`)
	for _, port := range []int{81, 82} {
		err := p.client.Do(func() error {
			_, err := net.DialTimeout("tcp", fmt.Sprintf("10.1.1.2:%d", port), 50*time.Millisecond)
			return err
		})
		if err == nil {
			t.Errorf("port %d is open", port)
		}
	}
	var drops []Drop
	must(t, p.node.Do(func() (err error) { drops, err = p.enforcer.Drops(); return err }))
	for i, want := range []Drop{{"shop/b", policy.Ingress, 1, 60}, {"web", policy.Egress, 1, 60}} {
		if len(drops) != 2 || drops[i] != want {
			t.Errorf("got %v, want %v", drops, want)
		}
	}
}

// concernedBy returns what a change from one program to another concerns.
func concernedBy(t *testing.T, before, after *policy.Program) map[netip.Addr]bool {
	t.Helper()
	is := stateOf(after, true)
	p, err := planOf(&stateOf(before, true).state, is, sameSets(before, after))
	must(t, err)
	return is.concerned(p.touched)
}

// The change of a policy concerns the pods that it selects, and pods whose identity changes.
func TestConcerned(t *testing.T) {
	web := `shop/web {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`
	other := `shop/other {"podSelector":{"matchLabels":{"pod":"c"}},"egress":[{"to":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]}]}`
	before := shop(t, web, other)
	after := shop(t, web, other)
	after.Pods[1].Labels = labels("pod", "x") // shop/b
	got := concernedBy(t, policy.Compile(before), policy.Compile(after))
	for _, a := range addrs("10.1.1.1", "fd01::1:1", "10.1.1.2", "fd01::1:2") {
		if got[a] {
			delete(got, a)
		} else if a == after.Pods[1].Addresses[0] || a == after.Pods[1].Addresses[1] {
			t.Errorf("%s is not concerned", a)
		}
	}
	if len(got) > 0 {
		t.Errorf("%v are concerned", got)
	}
}

// If a pod starts on another node, no connection of other pods is denied, unless a denying rule looks at the
// pod.
func TestNewPodsConcernNobody(t *testing.T) {
	web := `shop/web {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`
	deny := `deny {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"pod":"%s"}}}}]}]}`
	pass := strings.ReplaceAll(deny, "Deny", "Pass")
	for _, c := range []struct {
		name, other string
		want        bool
	}{
		{"accept", "", false}, {"deny it", fmt.Sprintf(deny, "new"), true}, {"deny others", fmt.Sprintf(deny, "c"), false}, {"pass it", fmt.Sprintf(pass, "new"), true},
	} {
		s := shop(t, web)
		if c.other != "" {
			s = shop(t, web, c.other)
		}
		before := policy.Compile(s)
		added := netip.MustParseAddr("10.1.9.9")
		s.Pods = append(s.Pods, policy.Pod{Namespace: "shop", Name: "new", Node: "n9", Labels: labels("pod", "new"), Phase: "Running", Addresses: []netip.Addr{added}})
		after := policy.Compile(s)
		if got := concernedBy(t, before, after); got[added] != c.want || !c.want && len(got) > 0 {
			t.Errorf("%s: %v are concerned, want the new pod: %v", c.name, got, c.want)
		}
		if got := concernedBy(t, after, before); !got[added] {
			t.Errorf("%s: %v are concerned by the end of the pod", c.name, got)
		}
	}
}

// With CutLater, several changes are one Cut, and a Cut that failed is not lost.
func TestCutLater(t *testing.T) {
	p := newPair(t, Options{CutLater: true})
	p.serve(":80")
	p.load(onB + fromA80 + "]}")
	if c := p.enforcer.DrainCut(); c == nil {
		t.Error("the first program ends no connections")
	}
	conn := p.dial("10.1.1.2:80")
	defer conn.Close() //nolint:errcheck // a test
	p.load(onB + fromA81 + "]}")
	p.load(onB+fromA81+"]}", `shop/more {"podSelector":{"matchLabels":{"pod":"c"}}}`)
	if !conn.asks(5 * time.Second) {
		t.Error("Load ended the connection")
	}
	c := p.enforcer.DrainCut()
	if p.enforcer.DrainCut() != nil {
		t.Error("the same connections twice")
	}
	p.enforcer.GiveBack(c)
	must(t, p.node.Do(func() error { return p.enforcer.DrainCut().Do(p.enforcer.Update) }))
	if conn.asks(silence) {
		t.Error("the connection lives although the policy denies it now")
	}
}

// When a pod is gone, its connections are, too. A new pod with its address does not get their packets.
func TestConnectionsOfAPodThatIsGone(t *testing.T) {
	for name, next := range map[string]func(*pair){
		"the next Load": func(*pair) {},
		"after Forget":  func(p *pair) { p.enforcer.Forget() },
		"a new agent":   func(p *pair) { p.enforcer = New(p.enforcer.fw, Options{}) },
	} {
		t.Run(name, func(t *testing.T) { connectionsOfAPodThatIsGone(t, next) })
	}
}

func connectionsOfAPodThatIsGone(t *testing.T, next func(*pair)) {
	p := newPair(t, Options{})
	p.serve(":80")
	p.load(onB + fromA80 + "]}")
	conn := p.dial("10.1.1.2:80")
	defer conn.Close() //nolint:errcheck // a test
	if !conn.asks(5 * time.Second) {
		t.Fatal("no answer")
	}
	s := shop(t, onB+fromA80+"]}", onA+toPort80s+"]}")
	s.Pods = slices.DeleteFunc(s.Pods, func(o policy.Pod) bool { return o.Namespace == "shop" && o.Name == "b" })
	next(p)
	must(t, p.node.Do(func() error { return p.enforcer.Load(t.Context(), policy.Compile(s), nil) }))
	must(t, p.node.Do(func() error {
		gone := netip.MustParseAddr("10.1.1.2")
		flows, err := conntrack.Among(map[netip.Addr]bool{gone: true}, func(f conntrack.Flow) bool { return f.Reply.Src.Addr() == gone })
		if len(flows) > 0 {
			t.Errorf("the connections %v exist", flows)
		}
		return err
	}))
}
