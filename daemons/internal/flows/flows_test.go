// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/sight"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const group = 9473

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// These are addresses of the namespace's loopback link.
const web, db = "10.50.0.1", "10.50.0.2"

// named is the end of such an address.
func named(a netip.Addr) sight.End { return sight.End{Address: a, Pod: "shop/" + a.String()} }

type lab struct {
	*testing.T
	*Service
	path string
}

// run starts a Service that dumps often.
func run(t *testing.T) *lab {
	l := &lab{T: t, path: filepath.Join(t.TempDir(), "flows.sock")}
	socket, err := net.Listen("unix", l.path)
	must(t, err)
	l.Service = New(Options{
		Group: group, Listener: socket, Space: "patchbay_test", Every: 10 * time.Millisecond, Failed: func(err error) {
			if err != nil {
				t.Error(err)
			}
		},
		Ends: func() func(netip.Addr) sight.End { return named }, End: named,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.Service.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return l
}

// ask returns the lines for a request that does not follow.
func (l *lab) ask(r flows.Request) (lines []flows.Line) {
	must(l.T, sight.Ask(l.Context(), l.path, r, func(line flows.Line) error { lines = append(lines, line); return nil }))
	return lines
}

// await waits until a condition holds, and fails the test after a minute.
func (l *lab) await(what string, ok func() bool) {
	l.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("waited for %s", what)
		}
	}
}

// localPort is the last one from which a connection was opened: a port that comes twice would be no new connection.
var localPort = 20000

// connect opens connections from an address of this machine to itself, by packets that nobody answers.
func connect(t testing.TB, to string, n int) {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", to)
	must(t, err)
	for range n {
		localPort++
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: addr.IP, Port: localPort}, addr)
		must(t, err)
		for range 3 {
			conn.Write([]byte("x")) //nolint:errcheck // an error tells that nobody listens
		}
		conn.Close() //nolint:errcheck // a test
	}
}

// track lets the namespace track connections, and removes the rules of the test at its end.
func track(t testing.TB) {
	t.Helper()
	nettest.Need(t, nettest.OwnedTables())
	nftSays(t, "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new")
	t.Cleanup(func() { nftSays(t, "delete table inet t") })
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	for _, a := range []string{web, db} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(32, 32)}}
		must(t, netlink.AddrReplace(lo, addr))
		t.Cleanup(func() { must(t, netlink.AddrDel(lo, addr)) })
	}
}

func nftSays(t testing.TB, commands string) string {
	t.Helper()
	out, err := exec.Command("nft", commands).CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

// What a dump finds is served, for one end or for all, and in metrics.
func TestServe(t *testing.T) {
	track(t)
	l := run(t)
	connect(t, web+":7001", 3)
	connect(t, db+":7002", 1)
	var flow flows.Flow
	var totals flows.Totals
	l.await("the flow", func() bool {
		got := l.ask(flows.Request{End: "shop/" + web})
		totals = *got[len(got)-1].Totals
		if len(got) > 1 {
			flow = *got[0].Flow
		}
		return flow.Now == 3
	})
	end := named(netip.MustParseAddr(web))
	if flow.From != end || flow.To != end || flow.Protocol != "udp" || flow.Port != 7001 || flow.Seen != 3 {
		t.Errorf("the flow is %+v", flow)
	}
	if totals.Connections != 4 || totals.Flows != 2 || totals.Seen != 4 || totals.Next < 0.01 {
		t.Errorf("the totals are %+v", totals)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(l.Service)
	families, err := registry.Gather()
	must(t, err)
	have := map[string]float64{}
	for _, f := range families {
		have[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue() + float64(f.GetMetric()[0].GetHistogram().GetSampleCount())
	}
	if have["patchbay_test_flows"] != 2 || have["patchbay_test_flow_connections"] != 4 || have["patchbay_test_flow_dump_duration_seconds"] < 1 {
		t.Errorf("the metrics are %v", have)
	}
}

// follower is a client that follows.
type following struct {
	*testing.T
	mu     sync.Mutex
	lines  []flows.Line
	cancel context.CancelFunc
	ended  chan struct{}
}

// follow starts a client. It returns when the rules are there.
func (l *lab) follow(r flows.Request) *following {
	l.Helper()
	f := &following{T: l.T, ended: make(chan struct{})}
	r.Follow = true
	ctx, cancel := context.WithCancel(l.Context())
	f.cancel = cancel
	before := l.watch.count()
	go func() {
		defer close(f.ended)
		err := sight.Ask(ctx, l.path, r, func(line flows.Line) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lines = append(f.lines, line)
			return nil
		})
		if err != nil {
			l.Error(err)
		}
	}()
	l.await("the follower", func() bool { return l.watch.count() > before })
	l.Cleanup(f.leave)
	return f
}

func (f *following) leave() {
	f.cancel()
	<-f.ended
}

// sum returns what came to the client.
func (f *following) sum() (list []flows.Connection, more flows.More) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lines {
		switch {
		case l.Connection != nil:
			list = append(list, *l.Connection)
		case l.More != nil:
			more.Lost, more.NotShown = more.Lost+l.More.Lost, more.NotShown+l.More.NotShown
		}
	}
	return list, more
}

// While somebody follows, each new connection is told once, and the rules go with the last client.
func TestFollow(t *testing.T) {
	track(t)
	l := run(t)
	connect(t, web+":7003", 1) // nobody looks
	f, other := l.follow(flows.Request{}), l.follow(flows.Request{End: "shop/" + db})
	connect(t, web+":7004", 2)
	connect(t, db+":7005", 1)
	l.await("three connections", func() bool { list, _ := f.sum(); return len(list) >= 3 })
	list, _ := f.sum()
	for i, port := range []uint16{7004, 7004, 7005} {
		if c := list[i]; c.Port != port || c.Protocol != "udp" || c.From.Pod != c.To.Pod || c.From.Pod == "" {
			t.Errorf("connection %d is %+v", i, c)
		}
	}
	f.leave()
	l.await("the first client to be gone", func() bool { return l.watch.count() == 1 })
	connect(t, db+":7006", 1)
	l.await("two connections", func() bool { list, _ := other.sum(); return len(list) == 2 })
	other.leave()
	l.await("no rules", func() bool { return !strings.Contains(nftSays(t, "list tables"), "patchbay_flows") })
	if list, _ := f.sum(); len(list) != 3 {
		t.Errorf("%d connections, want 3: %+v", len(list), list)
	}
	l.follow(flows.Request{})
}

// What was told, lost and kept back is exactly what began.
func TestFollowFlood(t *testing.T) {
	track(t)
	began := 3 * tellRate
	w, rules := new(watch), &telling{}
	*rules = *beginning(t)
	defer rules.group.Close() //nolint:errcheck // a test
	defer rules.rules.Close() //nolint:errcheck // as well
	connect(t, web+":7007", began)
	for quiet := 0; quiet < 3; quiet++ {
		list, lost := received(t, rules.group)
		w.receive(rules, list, lost)
		if len(list) > 0 {
			quiet = 0
		}
	}
	count, err := rules.rules.Count()
	must(t, err)
	m := w.more(rules, count)
	if sum := w.sums.told + m.Lost + m.NotShown; sum != uint64(began) || m.NotShown == 0 || m.Lost != w.sums.lost {
		t.Errorf("told %d, and %+v: together %d, want %d", w.sums.told, m, sum, began)
	}
	if again := w.more(rules, count); again != (flows.More{}) {
		t.Errorf("said twice: %+v", again)
	}
}

// beginning makes the rules for addresses that nobody names.
func beginning(t *testing.T) *telling {
	rules, err := begin(group)
	must(t, err)
	rules.end = named
	return rules
}

// received returns what comes within a while.
func received(t *testing.T, g *nflog.Listener) ([]nflog.Packet, uint64) {
	must(t, g.SetReadDeadline(time.Now().Add(nflog.Late)))
	list, lost, err := g.Receive()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return list, lost
}

// Another reader of the group is an error that names the way out, and leaves no rules.
func TestFollowWithoutTheGroup(t *testing.T) {
	track(t)
	l := run(t)
	other, err := nflog.Listen(group)
	must(t, err)
	var lines []flows.Line
	must(t, sight.Ask(t.Context(), l.path, flows.Request{Follow: true}, func(line flows.Line) error { lines = append(lines, line); return nil }))
	if len(lines) != 1 || !strings.Contains(lines[0].Error, "--flows-group") {
		t.Errorf("got %+v", lines)
	}
	if tables := nftSays(t, "list tables"); strings.Contains(tables, "patchbay_flows") {
		t.Errorf("the tables are %s", tables)
	}
	must(t, other.Close())
	l.follow(flows.Request{})
}

// A process that is killed while somebody follows leaves no rules.
func TestFollowKilled(t *testing.T) {
	if os.Getenv("FLOWS_FOLLOW") != "" { // the process that is killed
		_, err := begin(group)
		must(t, err)
		fmt.Println("rules")
		time.Sleep(time.Minute) // it is killed before
	}
	track(t)
	child := exec.Command("/proc/self/exe", "-test.run=^TestFollowKilled$")
	child.Env = append(os.Environ(), "FLOWS_FOLLOW=1")
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "rules\n" {
		t.Errorf("the process says %q, %v", line, err)
	}
	if tables := nftSays(t, "list tables"); !strings.Contains(tables, "patchbay_flows") {
		t.Errorf("before the kill, the tables are %s", tables)
	}
	must(t, child.Process.Kill())
	child.Wait() //nolint:errcheck // it was killed
	if tables := nftSays(t, "list tables"); strings.Contains(tables, "patchbay_flows") {
		t.Errorf("after the kill, the tables are %s", tables)
	}
}

// A dump that takes long is followed by a rest that is a hundred times as long, and an error is told.
func TestDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told error
		s := New(Options{Ends: func() func(netip.Addr) sight.End { return named }, Failed: func(err error) { told = err }})
		broken := errors.New("broken")
		took, result := 50*time.Millisecond, error(nil)
		s.survey = func(func(*conntrack.Entry)) error { time.Sleep(took); return result }
		if rest := s.dump(); rest != dumpEvery || told != nil {
			t.Errorf("after a short dump it rests %v, %v", rest, told)
		}
		took, result = time.Second, broken
		if rest := s.dump(); rest != 100*time.Second || !errors.Is(told, broken) {
			t.Errorf("after a long dump it rests %v, %v", rest, told)
		}
		if lines := s.lines(flows.Request{}); len(lines) != 2 || lines[0].Error != "broken" || lines[1].Totals.Next != 100 {
			t.Errorf("the lines are %+v", lines)
		}
	})
}
