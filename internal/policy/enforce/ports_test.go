// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// some returns ports of a protocol: 1001, 1003, and so on.
func some(protocol l4.Protocol, n int) (list []policy.Ports) {
	for i := range n {
		port := uint16(1001 + 2*i)
		list = append(list, policy.Ports{Protocol: protocol, First: port, Last: port})
	}
	return list
}

// A few ports have a line each. Many ports are joined if their ranges touch; then they are in a set, unless the
// protocol has few ranges left, or an entry without ports.
func TestPortsOfALine(t *testing.T) {
	const tcp, udp, sctp = l4.TCP, l4.UDP, l4.SCTP
	in := func(protocol l4.Protocol, first, last uint16) policy.Ports {
		return policy.Ports{Protocol: protocol, First: first, Last: last}
	}
	odd := func(n int, protocol, separator string) string { // 1001, 1003, and so on
		words := make([]string, n)
		for i := range words {
			words[i] = protocol + fmt.Sprint(1001+2*i)
		}
		return strings.Join(words, separator)
	}
	many := odd(few+1, "", ", ")
	for name, c := range map[string]struct {
		ports []policy.Ports
		want  string
	}{
		"all traffic":         {nil, "all traffic"},
		"few":                 {[]policy.Ports{in(tcp, 443, 443), in(tcp, 80, 80), in(udp, 10, 20), in(sctp, 0, 0)}, "tcp 443; tcp 80; udp 10-20; sctp"},
		"as many as few":      {some(tcp, few), odd(few, "tcp ", "; ")},
		"one more":            {some(tcp, few+1), "tcp in " + many},
		"of two protocols":    {slices.Concat(some(udp, few+1), some(tcp, few+1)), "tcp in " + many + "; udp in " + many},
		"few of another":      {append(some(udp, few+1), in(tcp, 53, 53)), "tcp 53; udp in " + many},
		"ranges that touch":   {slices.Concat(some(tcp, few+1), []policy.Ports{in(tcp, 1002, 1002), in(tcp, 1004, 2000)}), "tcp 1001-2000"},
		"ranges that overlap": {slices.Concat(some(udp, few+1), []policy.Ports{in(udp, 900, 1000), in(udp, 950, 1002)}), "udp 900-1003; " + odd(few+1, "udp ", "; ")[len("udp 1001; udp 1003; "):]},
		"to the highest port": {append(some(sctp, few+1), in(sctp, 65535, 65535), in(sctp, 65535, 65535), in(sctp, 65000, 65535)), "sctp in " + many + ", 65000-65535"},
		"a protocol has all":  {append(some(tcp, few+1), in(tcp, 0, 0), in(udp, 5, 5)), "tcp; udp 5"},
	} {
		before := slices.Clone(c.ports)
		var words []string
		for _, p := range portsOfLines(c.ports) {
			word := p.String()
			if p.set() != "" {
				word += " in " + p.title()
			}
			words = append(words, word)
		}
		if got := strings.Join(words, "; "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if !slices.Equal(before, c.ports) {
			t.Errorf("%s: the program changed", name)
		}
	}
}

// compileFor returns the program of one of two nodes for a drawn cluster. No drawn rule has many ports. So on the first
// node, compileFor adds ports to each rule with ports; no probe goes to them.
func compileFor(s *policy.State, node int) *policy.Program {
	s.Node = fmt.Sprint("node", node+1)
	p := policy.Compile(s)
	if node != 0 {
		return p
	}
	for i := range p.Chains {
		for j := range p.Chains[i].Rules {
			if r := &p.Chains[i].Rules[j]; len(r.Ports) > 0 {
				r.Ports = append(r.Ports, some(r.Ports[0].Protocol, few+1)...)
			}
		}
	}
	return p
}

// portsPolicy lets the pod a reach so many single ports of the pod b: 1001, 1003, and so on.
func portsPolicy(protocol string, n int) string {
	ports := make([]string, n)
	for i := range ports {
		ports[i] = fmt.Sprintf(`{"protocol":%q,"port":%d}`, protocol, 1001+2*i)
	}
	return onB + `{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}],"ports":[` + strings.Join(ports, ",") + `]}]}`
}

// If a rule has many ports, it is one rule of the kernel for each protocol and family, and rules with the same
// ports share their set. A new Enforcer finds what it would load, and the set is removed with the last rule.
func TestManyPorts(t *testing.T) {
	e, fw := open(t)
	for _, protocol := range []string{"TCP", "SCTP"} {
		p := policy.Compile(shop(t, portsPolicy(protocol, 100), strings.Replace(portsPolicy("UDP", 100), "shop/b", "shop/also", 1)))
		load(t, e, p)
		same(t, New(fw, Options{}), p)
		w := stateOf(p, false)
		for chain, lines := range w.lines {
			if ofPolicy(chain) && len(lines) != 2 {
				t.Errorf("%s: chain %s has %d rules, want one for each family", protocol, chain, len(lines))
			}
		}
		if sets := portSets(w); len(sets) != 1 {
			t.Errorf("%s: the ports are in the sets %v, want one", protocol, sets)
		}
	}
	p := policy.Compile(shop(t))
	load(t, e, p)
	same(t, New(fw, Options{}), p)
}

// A set of ports from which another program took one is repaired.
func TestRepairPorts(t *testing.T) {
	e, fw := open(t)
	p := policy.Compile(shop(t, portsPolicy("TCP", few+1)))
	load(t, e, p)
	set := portSets(stateOf(p, false))[0]
	nftTool(t, "delete", "element", "inet", "patchbay", set, "{ 1003 }")
	nftTool(t, "add", "element", "inet", "patchbay", set, "{ 2000-2010 }")
	got, err := New(fw, Options{}).Differences(p, nil)
	if want := []string{"remove 1 element from " + set, "add 1 element to " + set + " (1001, 1003, 1005, 1007, 1009, 1011, 1013, 1015, 1017, 1019, 1021, 1023, 1025, 1027, 1029, 1031, 1033)"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	e.Forget()
	load(t, e, p)
	same(t, New(fw, Options{}), p)
}

func portSets(w *wanted) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.sets)), func(name string) bool { return !isPorts(name) })
}

// Real connections pass to the ports that a rule names, the lowest and the highest too, and to no others.
func TestPortsOfPackets(t *testing.T) {
	p := newPair(t, Options{})
	p.load(onB + `{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}],"ports":[
		{"port":1},{"port":80},{"port":100,"endPort":102},{"port":65535},{"port":10},{"port":12},{"port":14},{"port":16},{"port":18},{"port":20},{"port":22},{"port":24},{"port":26},{"port":28},{"port":30},{"port":32},{"port":34},{"port":36},{"port":90,"protocol":"UDP"},{"port":92,"protocol":"UDP"}]}]}`)
	for port, passes := range map[int]bool{1: true, 2: false, 79: false, 80: true, 81: false, 90: false, 92: false, 99: false, 100: true, 101: true, 102: true, 103: false, 65534: false, 65535: true} {
		p.serve(fmt.Sprint(":", port))
		for _, server := range []string{"10.1.1.2", "[fd01::1:2]"} {
			if addr := fmt.Sprint(server, ":", port); p.answers(p.client, addr, passes) != passes {
				t.Errorf("%s passes: want %v", addr, passes)
			}
		}
	}
}

// formerly returns what versions before sets of ports had for a program: a rule for each range.
func formerly(t testing.TB, p *policy.Program) *wanted {
	w := stateOf(p, false)
	for chain, lines := range w.lines {
		var out []line
		for _, l := range lines {
			ranges := []policy.Ports{l.ports}
			if l.portSet != "" {
				list, err := w.elements(l.portSet)
				must(t, err)
				ranges = nil
				for _, e := range list {
					ranges = append(ranges, policy.Ports{Protocol: l.ports.Protocol, First: e.ports[0], Last: e.ports[1]})
				}
				l.portSet = ""
			}
			for _, l.ports = range ranges {
				out = append(out, l)
			}
		}
		w.lines[chain] = out
	}
	maps.DeleteFunc(w.sets, func(name string, _ bool) bool { return isPorts(name) })
	return w
}

// loadFormer loads into the kernel the rules of an agent of such a version.
func loadFormer(t testing.TB, e *Enforcer, p *policy.Program) {
	e.Forget()
	must(t, e.attend(t.Context(), p, true))
	before, err := e.before()
	must(t, err)
	todo, err := planOf(before, formerly(t, p), nil)
	must(t, err)
	must(t, e.apply(t.Context(), todo))
}

// An agent of this version finds the rules of one that had a rule for each port, and the other way round. The chain of the
// policy changes in one transaction, so connections that begin meanwhile are neither lost nor let through.
func TestFormerPorts(t *testing.T) {
	p := newPair(t, Options{KeepConnections: true})
	p.serve(":1003")
	p.serve(":1004")
	program := policy.Compile(shop(t, portsPolicy("TCP", 20)))
	must(t, p.node.Do(func() error { loadFormer(t, p.enforcer, program); return nil }))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if !p.answers(p.client, "10.1.1.2:1003", true) {
				done <- errors.New("a connection that is allowed was dropped")
				return
			}
			if p.answersWithin(p.client, "10.1.1.2:1004", 2*time.Millisecond) {
				done <- errors.New("a connection that is denied passed")
				return
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	for range 10 {
		must(t, p.node.Do(func() error {
			load(t, New(p.enforcer.fw, Options{KeepConnections: true}), program)
			same(t, New(p.enforcer.fw, Options{}), program)
			loadFormer(t, New(p.enforcer.fw, Options{}), program)
			return nil
		}))
	}
	close(stop)
	must(t, <-done)
}

// The change from rules to a set empties no chain before or after the switch-over, and changes nothing else.
func TestPlanOfFormerPorts(t *testing.T) {
	e, _ := open(t)
	program := policy.Compile(shop(t, portsPolicy("TCP", few+1)))
	loadFormer(t, e, program)
	before, err := e.before()
	must(t, err)
	todo, err := planOf(before, stateOf(program, false), nil)
	must(t, err)
	set, chain := portSets(stateOf(program, false))[0], chainOf(&program.Chains[0])
	for name, c := range map[string]struct {
		steps []step
		want  []string
	}{
		"prepare": {todo.prepare, []string{"add set " + set + " (1001, 1003, 1005, 1007, 1009, 1011, 1013, 1015, 1017, 1019, 1021, 1023, 1025, 1027, 1029, 1031, 1033)"}},
		"switch":  {todo.switchOver, []string{"replace the rules of chain " + chain}},
		"clean":   {todo.clean, nil},
	} {
		var got []string
		for _, s := range c.steps {
			got = append(got, s.what)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// If a packet's port is not known, the answer names the ports of the rule that may allow it.
func TestReasonOfPorts(t *testing.T) {
	e, fw := open(t)
	for n, want := range map[int]string{
		1:  "tcp 1001",
		20: "tcp 1001, 1003, 1005, 1007, 1009, 1011, 1013, 1015, and 12 more",
	} {
		load(t, e, policy.Compile(shop(t, portsPolicy("TCP", n))))
		must(t, WithView(fw, func(v *View) error {
			list, err := v.Judge(Packet{From: netip.MustParseAddr("10.1.1.1"), To: netip.MustParseAddr("10.1.1.2"), Protocol: l4.TCP})
			if FateOf(list) != eval.Accepted|eval.Dropped {
				t.Fatalf("%d ports: got %+v", n, list)
			}
			if got := list[len(list)-1].Reasons[0].Text; got != "rule ingress[0] of networkpolicy shop/b allows it, for "+want {
				t.Errorf("%d ports: got %q", n, got)
			}
			return err
		}))
	}
}

// BenchmarkPorts compares a rule with many ports with the rules of versions before sets of ports. It measures their
// load, and the cost of a packet that no rule accepts.
func BenchmarkPorts(b *testing.B) {
	for _, n := range []int{17, 100} {
		p := policy.Compile(shop(b, portsPolicy("UDP", n)))
		for _, c := range []struct {
			name string
			load func(testing.TB, *Enforcer, *policy.Program)
			w    *wanted
		}{{"former", loadFormer, formerly(b, p)}, {"now", load, stateOf(p, false)}} {
			b.Run(fmt.Sprintf("ports=%d/%s/load", n, c.name), func(b *testing.B) { benchLoad(b, p, c.load, c.w) })
			b.Run(fmt.Sprintf("ports=%d/%s/denied", n, c.name), func(b *testing.B) {
				benchDenied(b, func(e *Enforcer) { c.load(b, e, p) })
			})
		}
	}
}

func benchLoad(b *testing.B, p *policy.Program, load func(testing.TB, *Enforcer, *policy.Program), w *wanted) {
	e, _ := open(b)
	var took int64
	for b.Loop() {
		b.StopTimer()
		e.Forget()
		must(b, e.Load(b.Context(), &policy.Program{}, nil))
		before := spent(b, unix.CLOCK_PROCESS_CPUTIME_ID)
		b.StartTimer()
		load(b, e, p)
		took += spent(b, unix.CLOCK_PROCESS_CPUTIME_ID) - before
	}
	b.ReportMetric(float64(took)/float64(b.N), "cpu-ns/op")
	rules := 0
	for chain, lines := range w.lines {
		if ofPolicy(chain) {
			rules += len(lines)
		}
	}
	b.ReportMetric(float64(rules), "rules")
}

// spent returns the processor time of this thread or process in nanoseconds: other programs may keep the machine busy.
func spent(b testing.TB, clock int32) int64 {
	b.Helper()
	var ts unix.Timespec
	must(b, unix.ClockGettime(clock, &ts))
	return ts.Nano()
}

// benchDenied sends datagrams that policies deny. Each is the first packet of a connection, and the system call of its
// sender goes through the rules.
func benchDenied(b *testing.B, load func(*Enforcer)) {
	p := newPair(b, Options{})
	must(b, p.node.Do(func() error { load(p.enforcer); return nil }))
	var conn net.Conn
	must(b, p.client.Do(func() (err error) { conn, err = net.Dial("udp", "10.1.1.2:1000"); return err }))
	defer conn.Close()     //nolint:errcheck // a test
	runtime.LockOSThread() // its processor time is what the packets cost
	defer runtime.UnlockOSThread()
	before := spent(b, unix.CLOCK_THREAD_CPUTIME_ID)
	for b.Loop() {
		_, err := conn.Write([]byte("x"))
		must(b, err)
	}
	b.ReportMetric(float64(spent(b, unix.CLOCK_THREAD_CPUTIME_ID)-before)/float64(b.N), "cpu-ns/op")
}
