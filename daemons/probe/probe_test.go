// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/trace"
	"github.com/patchbay-net/patchbay/netns"
)

// TestMain runs a question as a process of its own if a test asks for it.
func TestMain(m *testing.M) {
	if text := os.Getenv(askVariable); text != "" {
		os.Exit(askAlone(text))
	}
	nettest.Main(m)
}

const askVariable = "PATCHBAY_TRACE_QUESTION"

func askAlone(text string) int {
	var q trace.Question
	err := json.Unmarshal([]byte(text), &q)
	if err == nil {
		_, err = Host{Proc: "/proc", Wait: time.Minute}.Trace(q)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// lab is a node (the namespace of the test) with two networks, and a machine outside.
//
//	a 10.77.0.2, b 10.77.0.3 on br0 (10.77.0.1)    c 10.78.0.2 on br1 (10.78.0.1)    out 198.51.100.2 on up0 (198.51.100.1)
type lab struct {
	*testing.T
	path map[string]string
}

func newLab(t *testing.T) *lab {
	nettest.Need(t, nettest.Program("nft"))
	l := &lab{T: t, path: make(map[string]string)}
	for _, name := range []string{"a", "b", "c", "out"} {
		l.path[name] = nettest.NewNS(t, "trace-"+name)
	}
	l.sh(`sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.default.accept_dad=0
sysctl -qew net.bridge.bridge-nf-call-iptables=1
for b in 0 1; do ip link add br$b type bridge forward_delay 0; ip addr add 10.7$((7+b)).0.1/24 dev br$b; ip link set br$b up; done
ip link add up0 type veth peer name eth0 netns trace-out; ip addr add 198.51.100.1/24 dev up0; ip link set up0 up
ip -n trace-out addr add 198.51.100.2/24 dev eth0; ip -n trace-out link set eth0 up
while read ns br addr; do
	ip link add v$ns type veth peer name eth0 netns trace-$ns; ip link set v$ns master $br up
	ip -n trace-$ns link set lo up; ip -n trace-$ns addr add $addr/24 dev eth0; ip -n trace-$ns link set eth0 up; ip -n trace-$ns route add default via ${addr%.*}.1
done <<E
a br0 10.77.0.2
b br0 10.77.0.3
c br1 10.78.0.2
E`)
	t.Cleanup(func() {
		l.sh(`for link in br0 br1 up0 va vb vc; do ip link del $link; done; nft flush ruleset; ip route flush type unreachable; ip -6 route flush type unreachable; sysctl -qw net.ipv6.conf.all.forwarding=0
! command -v iptables-legacy >/dev/null || iptables-legacy -F`)
	})
	for _, name := range []string{"a", "b", "c", "out"} {
		l.listen(name, ":8080")
	}
	l.listen("c", "127.0.0.1:8081")
	return l
}

func (l *lab) sh(script string) {
	l.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		l.Fatalf("%v\n%s\n%s", err, out, script)
	}
}

// listen listens in a namespace until the test ends.
func (l *lab) listen(name, at string) {
	l.Helper()
	ns, err := netns.Open(l.path[name])
	if err != nil {
		l.Fatal(err)
	}
	var s net.Listener
	if err := ns.Do(func() (err error) { s, err = net.Listen("tcp", at); return err }); err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { s.Close(); ns.Close() }) //nolint:errcheck // a test
}

func (l *lab) end(word string) trace.End {
	switch word {
	case "host":
		return trace.End{Word: word, Addr: netip.MustParseAddr("10.77.0.1"), Local: true}
	case "out":
		return trace.End{Word: word, Addr: netip.MustParseAddr("198.51.100.2")}
	}
	addr := map[string]string{"a": "10.77.0.2", "b": "10.77.0.3", "c": "10.78.0.2"}[word]
	return trace.End{Word: word, Addr: netip.MustParseAddr(addr), Local: true, NS: l.path[word]}
}

func (l *lab) ask(from, to string, protocol l4.Protocol, port uint16) *trace.Report {
	l.Helper()
	q := trace.Question{From: l.end(from), To: l.end(to), Protocol: protocol, Port: port, Containers: []trace.End{l.end("a"), l.end("c")}}
	if from == "host" {
		q.From.Addr = netip.Addr{}
	}
	return l.trace(q)
}

// trace answers a question, and looks for what is left.
func (l *lab) trace(q trace.Question) *trace.Report {
	l.Helper()
	r, err := Host{Proc: "/proc"}.Trace(q)
	if err != nil {
		l.Fatal(err)
	}
	l.nothingLeft()
	flows, err := conntrack.Among(map[netip.Addr]bool{q.From.Addr: true}, func(f conntrack.Flow) bool { return true })
	if len(flows) > 0 || err != nil {
		l.Errorf("connections are left: %v (%v)", flows, err)
	}
	return r
}

func (l *lab) nothingLeft() {
	l.Helper()
	for _, ns := range []string{"", "ip netns exec trace-a ", "ip netns exec trace-c "} {
		out, err := exec.Command("sh", "-c", ns+"nft list tables").CombinedOutput()
		if err != nil || strings.Contains(string(out), nft.TraceTable) {
			l.Errorf("%sleft behind: %s (%v)", ns, out, err)
		}
	}
}

const masq = `nft 'table ip m { chain p { type nat hook postrouting priority srcnat; ip saddr 10.77.0.0/24 oifname "up0" masquerade; }; }'
`

// TestBrokenNodes breaks a node, and asks where a packet ends.
func TestBrokenNodes(t *testing.T) {
	for _, c := range []struct {
		name, breaks string
		from, to     string
		port         uint16
		verdict      trace.Verdict
		cause        trace.Cause
		where, text  string
		fix          string
	}{
		{name: "nothing, one bridge", from: "a", to: "b", port: 8080, verdict: trace.Arrives},
		{name: "nothing, two networks", from: "a", to: "c", port: 8080, verdict: trace.Arrives},
		{name: "nothing, echo", from: "a", to: "c", verdict: trace.Arrives},
		{name: "nothing, from the host", from: "host", to: "c", port: 8080, verdict: trace.Arrives},
		{name: "nothing, outside", breaks: masq, from: "a", to: "out", port: 8080, verdict: trace.Arrives},
		{name: "forwarding off", breaks: "sysctl -qw net.ipv4.ip_forward=0", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.Forwarding, where: "the host", text: "forwarding is off", fix: "sysctl -w net.ipv4.ip_forward=1"},
		{name: "reverse path filter", breaks: "sysctl -qw net.ipv4.conf.br0.rp_filter=1; ip route add 10.77.0.2/32 dev br1", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.ReversePath, where: "the host", text: "reverse path filter", fix: "rp_filter=2"},
		{name: "FORWARD of iptables-nft", breaks: "iptables-nft -P FORWARD DROP", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.Rule, where: "the host", text: "ip filter FORWARD drops by its policy", fix: "iptables -I FORWARD -i br0 -o br1 -j ACCEPT"},
		{name: "a chain of Docker", breaks: "iptables-nft -N DOCKER-USER; iptables-nft -N DOCKER-FORWARD; iptables-nft -A FORWARD -j DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-FORWARD; iptables-nft -A DOCKER-FORWARD -o br1 -j DROP",
			from: "a", to: "c", port: 8080, verdict: trace.Ends, cause: trace.Rule, where: "the host", text: "ip filter DOCKER-FORWARD rule 1", fix: "DOCKER-USER -i br0 -o br1 -j ACCEPT"},
		{name: "a table like firewalld's", breaks: `nft 'table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; ct state established accept; iifname "br0" reject with icmpx admin-prohibited; }; }'`,
			from: "a", to: "c", port: 8080, verdict: trace.Ends, cause: trace.Rule, where: "the host", text: "inet firewalld filter_FORWARD rule 2", fix: "firewall-cmd"},
		{name: "the answer is dropped", breaks: `nft 'table inet x { chain f { type filter hook forward priority 0; iifname "br1" drop comment "by hand"; }; }'`,
			from: "a", to: "c", port: 8080, verdict: trace.Ends, cause: trace.Rule, where: "the host", text: `its answer does not come back: inet x f rule 1`, fix: "nft insert rule inet x f position"},
		{name: "no masquerade", from: "a", to: "out", port: 8080,
			verdict: trace.Ends, cause: trace.Masquerade, where: "the host", text: "the container's own address 10.77.0.2", fix: "ipMasq"},
		{name: "wrong gateway", breaks: "ip -n trace-a route replace default via 10.77.0.254", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.WrongGateway, where: "a", text: "its gateway 10.77.0.254 is no address of br0 on the host, which has 10.77.0.1", fix: "ip route replace default via 10.77.0.1"},
		{name: "no default route", breaks: "ip -n trace-a route del default", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.NoRoute, where: "a", text: "no route to 10.78.0.2", fix: "ip route add default via 10.77.0.1"},
		{name: "wrong route in the container", breaks: "ip -n trace-a route add blackhole 10.78.0.0/24", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.BadRoute, where: "a", text: "blackhole", fix: "ip route get 10.78.0.2"},
		{name: "unreachable on the host", breaks: "ip route add unreachable 10.78.0.2/32", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.BadRoute, where: "the host", text: "unreachable"},
		{name: "no way back", breaks: "ip -n trace-c route del default", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.NoWayBack, where: "c", text: "no route to 10.77.0.2"},
		{name: "link down in the container", breaks: "ip -n trace-a link set eth0 down", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.LinkDown, where: "a", text: "eth0 is down", fix: "ip link set eth0 up"},
		{name: "link down in the target", breaks: "ip -n trace-c link set eth0 down", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.LinkDown, where: "c", text: "eth0 is down"},
		{name: "the host's end is down", breaks: "ip link set va down", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.LinkDown, where: "a", text: "va on the host is down", fix: "ip link set va up"},
		{name: "not on its bridge", breaks: "ip link set vc nomaster", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, text: "c", where: "the host", cause: trace.LinkDown, fix: "ip link set vc master br1"},
		{name: "the target lost its address", breaks: "ip -n trace-c addr flush dev eth0", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.NotHere, where: "c", text: "does not have the address 10.78.0.2"},
		{name: "another has the address", breaks: "ip neigh replace 10.78.0.2 lladdr 02:00:00:00:00:99 dev br1", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.Duplicate, where: "the host", text: "02:00:00:00:00:99", fix: "ip neigh del 10.78.0.2 dev br1"},
		{name: "nobody outside", from: "host", to: "out", port: 8080, breaks: "ip -n trace-out addr flush dev eth0",
			verdict: trace.Left, cause: trace.NoNeighbour, where: "the host", text: "nobody on up0 answers for 198.51.100.2"},
		{name: "no listener", from: "a", to: "c", port: 81, verdict: trace.Refused, cause: trace.NoListener, where: "c", text: "nothing listens on 81/tcp of 10.78.0.2"},
		{name: "its own firewall", breaks: `ip netns exec trace-a nft 'table inet own { chain o { type filter hook output priority 0; tcp dport 8080 drop; }; }'`, from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.OwnFirewall, where: "a", text: "inet own o rule 1"},
		{name: "the target's firewall", breaks: `ip netns exec trace-c nft 'table inet own { chain i { type filter hook input priority 0; tcp dport 8080 drop; }; }'`, from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.OwnFirewall, where: "c", text: "inet own i rule 1"},
		{name: "a bridge's table", breaks: `nft 'table bridge x { chain f { type filter hook forward priority 0; ip daddr 10.77.0.3 drop; }; }'`, from: "a", to: "b", port: 8080,
			verdict: trace.Ends, cause: trace.Rule, where: "the host", text: "bridge x f rule 1"},
		{name: "br_netfilter", breaks: "iptables-nft -P FORWARD DROP", from: "a", to: "b", port: 8080,
			verdict: trace.Ends, cause: trace.Rule, where: "the host", text: "ip filter FORWARD drops by its policy"},
		{name: "iptables-legacy", breaks: "iptables-legacy -A FORWARD -p tcp --dport 8080 -j DROP", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.Legacy, where: "the host", text: "at the hook forward", fix: "iptables-legacy -vnL FORWARD"},
		{name: "listens on another address", breaks: "true", from: "a", to: "c", port: 8081,
			verdict: trace.Refused, cause: trace.NoListener, where: "c", text: "only on 127.0.0.1", fix: "0.0.0.0"},
		{name: "to itself", breaks: "true", from: "c", to: "c", port: 8080, verdict: trace.Arrives},
		{name: "to the host, no listener", breaks: "true", from: "a", to: "host", port: 8080,
			verdict: trace.Refused, cause: trace.NoListener, where: "the host"},
		{name: "hairpin", breaks: `nft 'table ip p { chain d { type nat hook prerouting priority dstnat; tcp dport 9090 dnat to 10.77.0.2:8080; }; }'`, from: "a", to: "host", port: 9090,
			verdict: trace.Ends, cause: trace.Hairpin, where: "the host", text: "hairpin mode of va is off", fix: "bridge link set dev va hairpin on"},
		{name: "hairpin without br_netfilter", breaks: `sysctl -qw net.bridge.bridge-nf-call-iptables=0; nft 'table ip p { chain d { type nat hook prerouting priority dstnat; tcp dport 9090 dnat to 10.77.0.2:8080; }; }'`, from: "a", to: "host", port: 9090,
			verdict: trace.Ends, cause: trace.Hairpin, where: "a", text: "own address 10.77.0.2 as source"},
		{name: "a published port", breaks: `nft 'table ip p { chain d { type nat hook prerouting priority dstnat; tcp dport 9090 dnat to 10.78.0.2:8080; }; }'`, from: "a", to: "host", port: 9090,
			verdict: trace.Arrives},
		{name: "MTU black hole", breaks: "ip link set br1 mtu 1400; ip link set br1 mtu 1500; ip link set vc mtu 1300", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.MTU, text: "1500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			for _, program := range []string{"iptables-nft", "iptables-legacy"} {
				if strings.Contains(c.breaks, program) {
					nettest.Need(t, nettest.Program(program))
				}
			}
			l.sh(c.breaks)
			protocol := l4.TCP
			if c.port == 0 {
				protocol = l4.ICMP
			}
			r := l.ask(c.from, c.to, protocol, c.port)
			f := trace.Finding{}
			if r.Finding != nil {
				f = *r.Finding
			}
			if r.Verdict != c.verdict || f.Cause != c.cause || c.where != "" && f.Where != c.where || !strings.Contains(f.Text, c.text) || !strings.Contains(f.Fix, c.fix) || r.Disagreement != "" {
				t.Errorf("got\n%s", r.Text())
			}
			t.Log(r.Headline())
		})
	}
}

// TestPolicies asks about what network policies drop, out of a pod and into one.
func TestPolicies(t *testing.T) {
	for name, c := range map[string]struct{ policy, text string }{
		"in":  {`{"podSelector":{"matchLabels":{"app":"c"}},"policyTypes":["Ingress"]}`, "policy_dropin_isolated"},
		"out": {`{"podSelector":{"matchLabels":{"app":"a"}},"policyTypes":["Egress"]}`, "policy_dropout_isolated"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			fw := nft.Open("")
			defer fw.Close() //nolint:errcheck // a test
			s := &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}}
			for _, pod := range []string{"a", "c"} {
				s.Pods = append(s.Pods, policy.Pod{Namespace: "shop", Name: pod, UID: pod, Node: "n1", Phase: "Running",
					Addresses: []netip.Addr{l.end(pod).Addr}, Labels: policy.LabelsOf(map[string]string{"app": pod})})
			}
			np, err := policy.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":"shop","name":"closed"},"spec":%s}`, c.policy))
			if err != nil {
				t.Fatal(err)
			}
			s.Policies = append(s.Policies, np)
			if err := enforce.New(fw, enforce.Options{}).Load(context.Background(), policy.NewDecider(s).Program, nil); err != nil {
				t.Fatal(err)
			}
			q := trace.Question{From: l.end("a"), To: l.end("c"), Protocol: l4.TCP, Port: 8080, Policies: &trace.Judgement{Text: "dropped: isolated by networkpolicy shop/closed"}}
			r := l.trace(q)
			if r.Verdict != trace.Ends || r.Finding.Cause != trace.Policy || !strings.Contains(r.Finding.Text, "inet patchbay") || !strings.HasSuffix(r.Finding.Text, "shop/closed") || r.Disagreement != "" {
				t.Errorf("got\n%s", r.Text())
			}
			t.Log(r.Headline())

			q.Policies = &trace.Judgement{Text: "allowed", Allowed: true}
			if r := l.trace(q); !strings.Contains(r.Disagreement, "by the evaluation the packet passes") {
				t.Errorf("the policies were said to allow it: got\n%s", r.Text())
			}
			q.To, q.Policies = l.end("b"), &trace.Judgement{Text: "dropped"}
			if r := l.trace(q); name == "in" && !strings.Contains(r.Disagreement, "but it arrived") {
				t.Errorf("the policies were said to drop it: got\n%s", r.Text())
			}
		})
	}
}

// TestKilled kills a trace while it waits. Nothing is left.
func TestKilled(t *testing.T) {
	l := newLab(t)
	l.sh("ip -n trace-c link set eth0 down")
	question, err := json.Marshal(trace.Question{From: l.end("a"), To: l.end("c"), Protocol: l4.TCP, Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), askVariable+"="+string(question))
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); !l.traces() && time.Since(begun) < 20*time.Second; {
			time.Sleep(time.Millisecond) // it waits for a state, not for a time
		}
		if !l.traces() {
			t.Error("the trace has not begun")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(errs)
		var ended *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &ended) || len(said) > 0 {
			t.Errorf("it ended with %v: %s", err, said)
		}
		l.nothingLeft()
	}
}

// traces reports whether a trace runs in the target, the last namespace that it enters.
func (l *lab) traces() bool {
	out, err := exec.Command("ip", "netns", "exec", "trace-c", "nft", "list", "tables").Output()
	return err == nil && strings.Contains(string(out), nft.TraceTable)
}

// TestPacket compares the checksums with those of RFC 1071, and reads what it wrote.
func TestPacket(t *testing.T) {
	for _, addrs := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		for _, protocol := range []l4.Protocol{l4.TCP, l4.UDP, l4.ICMP} {
			p, err := newPacket(netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), protocol, 80)
			if err != nil {
				t.Fatal(err)
			}
			p.sport = 1234
			for _, pad := range []int{0, 1, 1400} {
				p.pad = pad
				b := p.bytes()
				network, transport := b[:p.network()], b[p.network():]
				if sum := p.checksum(transport); sum != 0 && sum != 0xffff {
					t.Errorf("%v %s, %d bytes: the checksum is wrong by %#x", addrs, protocol, pad, sum)
				}
				if s, ok := p.read(network, transport[:min(20, len(transport))]); !ok || s.kind != probe || s.src != p.src || s.dst != p.dst {
					t.Errorf("%v %s: read %+v", addrs, protocol, s)
				}
				for _, m := range p.matches()[:1] {
					if got := transport[m.Offset : int(m.Offset)+len(m.Value)]; string(got) != string(m.Value) {
						t.Errorf("%v %s: the rule looks for %x, the packet has %x", addrs, protocol, m.Value, got)
					}
				}
			}
		}
	}
}

// TestIPv6 asks the same about IPv6.
func TestIPv6(t *testing.T) {
	for name, c := range map[string]struct {
		breaks  string
		port    uint16
		verdict trace.Verdict
		cause   trace.Cause
		fix     string
	}{
		"nothing":        {"true", 8080, trace.Arrives, "", ""},
		"echo":           {"true", 0, trace.Arrives, "", ""},
		"no listener":    {"true", 81, trace.Refused, trace.NoListener, ""},
		"forwarding off": {"sysctl -qw net.ipv6.conf.all.forwarding=0", 8080, trace.Ends, trace.Forwarding, "sysctl -w net.ipv6.conf.all.forwarding=1"},
		"a rule":         {`nft 'table ip6 x { chain f { type filter hook forward priority 0; tcp dport 8080 drop; }; }'`, 8080, trace.Ends, trace.Rule, "ip6 daddr fd78::2 accept"},
		"unreachable":    {"ip -6 route add unreachable fd78::2", 8080, trace.Ends, trace.BadRoute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.sh(`sysctl -qw net.ipv6.conf.all.forwarding=1
ip addr add fd77::1/64 dev br0 nodad; ip addr add fd78::1/64 dev br1 nodad
ip -n trace-a addr add fd77::2/64 dev eth0 nodad; ip -n trace-a route add default via fd77::1
ip -n trace-c addr add fd78::2/64 dev eth0 nodad; ip -n trace-c route add default via fd78::1
` + c.breaks)
			q := trace.Question{From: l.end("a"), To: l.end("c"), Protocol: l4.TCP, Port: c.port}
			q.From.Addr, q.To.Addr = netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd78::2")
			if c.port == 0 {
				q.Protocol = l4.ICMP
			}
			r, f := l.trace(q), trace.Finding{}
			if r.Finding != nil {
				f = *r.Finding
			}
			if r.Verdict != c.verdict || f.Cause != c.cause || !strings.Contains(f.Fix, c.fix) || r.Disagreement != "" {
				t.Errorf("got\n%s", r.Text())
			}
			t.Log(r.Headline())
		})
	}
}
