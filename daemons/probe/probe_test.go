// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/trace"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

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
	l.sh(`sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
for b in 0 1; do ip link add br$b type bridge forward_delay 0; ip addr add 10.7$((7+b)).0.1/24 dev br$b; ip link set br$b up; done
ip link add up0 type veth peer name eth0 netns trace-out; ip addr add 198.51.100.1/24 dev up0; ip link set up0 up
ip -n trace-out addr add 198.51.100.2/24 dev eth0; ip -n trace-out link set eth0 up
while read ns br addr; do
	ip link add v$ns type veth peer name eth0 netns trace-$ns; ip link set v$ns master $br up
	ip -n trace-$ns addr add $addr/24 dev eth0; ip -n trace-$ns link set eth0 up; ip -n trace-$ns route add default via ${addr%.*}.1
done <<E
a br0 10.77.0.2
b br0 10.77.0.3
c br1 10.78.0.2
E`)
	t.Cleanup(func() {
		l.sh(`for link in br0 br1 up0 va vb vc; do ip link del $link; done; nft flush ruleset; ip route flush type unreachable`)
	})
	for _, name := range []string{"b", "c", "out"} {
		l.listen(name, ":8080")
	}
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
		return trace.End{Word: word, Local: true}
	case "out":
		return trace.End{Word: word, Addr: netip.MustParseAddr("198.51.100.2")}
	}
	addr := map[string]string{"a": "10.77.0.2", "b": "10.77.0.3", "c": "10.78.0.2"}[word]
	return trace.End{Word: word, Addr: netip.MustParseAddr(addr), Local: true, NS: l.path[word]}
}

func (l *lab) ask(from, to string, protocol l4.Protocol, port uint16) *trace.Report {
	l.Helper()
	q := trace.Question{From: l.end(from), To: l.end(to), Protocol: protocol, Port: port}
	r, err := Host{Proc: "/proc"}.Trace(q)
	if err != nil {
		l.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "nft list ruleset | grep "+"patchbay_trace; ip netns exec trace-b nft list ruleset").CombinedOutput(); len(out) > 0 {
		l.Errorf("left behind: %s (%v)", out, err)
	}
	return r
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
			verdict: trace.Ends, cause: trace.NoRoute, where: "a", text: "no route to 10.78.0.2", fix: "ip route add default"},
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
		{name: "MTU black hole", breaks: "ip link set br1 mtu 1400; ip link set br1 mtu 1500; ip link set vc mtu 1300", from: "a", to: "c", port: 8080,
			verdict: trace.Ends, cause: trace.MTU, text: "1500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			if strings.Contains(c.breaks, "iptables-nft") {
				nettest.Need(t, nettest.Program("iptables-nft"))
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
