// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// book is a View of fixed names, for two networks.
type book map[string][]netip.Addr // "network/name"

func (b book) Addrs(network, name string) ([]netip.Addr, bool) {
	a, ok := b[network+"/"+name]
	return a, ok
}

func (b book) Names(network string, addr netip.Addr) (out []string) {
	for key, addrs := range b {
		if name, ok := strings.CutPrefix(key, network+"/"); ok && slices.Contains(addrs, addr) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (b book) Contains(network string, addr netip.Addr) bool {
	lo := addr.IsLoopback()
	switch network {
	case "blue":
		return lo || netip.MustParsePrefix("10.40.0.0/16").Contains(addr) || netip.MustParsePrefix("fd40::/16").Contains(addr)
	case "Red.net":
		return lo || netip.MustParsePrefix("10.50.0.0/16").Contains(addr)
	}
	return false
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func testBook() book {
	b := book{
		"blue/web":     addrs("10.40.1.5", "10.40.2.5", "fd40:1::5"),
		"blue/four":    addrs("10.40.1.6"),
		"blue/db":      addrs("10.40.1.7", "fd40:1::7"),
		"blue/my.app":  addrs("10.40.1.8"),
		"blue/a_b-c":   addrs("10.40.1.9"),
		"blue/starts":  nil,
		"Red.net/web":  addrs("10.50.1.5"),
		"Red.net/only": addrs("10.50.1.6"),
	}
	for i := range 5000 {
		b["blue/crowd"] = append(b["blue/crowd"], netip.AddrFrom4([4]byte{10, 40, byte(100 + i/250), byte(i % 250)}))
	}
	for i := range 200 {
		b["blue/many"] = append(b["blue/many"], netip.AddrFrom4([4]byte{10, 40, 9, byte(i)}))
	}
	return b
}

// answers returns the records of a reply as text, without name and TTL, sorted.
func answers(m *dns.Msg) (out []string) {
	for _, rr := range m.Answer {
		out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(out)
	return out
}

func query(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
}

func TestAnswer(t *testing.T) {
	s := &Server{View: testBook(), Domain: "Patchbay.internal."}
	const forwarded = "forwarded"
	for _, tc := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web", dns.TypeA, "10.40.1.5 10.40.2.5"},
		{"WeB", dns.TypeA, "10.40.1.5 10.40.2.5"},
		{"web", dns.TypeAAAA, "fd40:1::5"},
		{"web", dns.TypeANY, "10.40.1.5 10.40.2.5 fd40:1::5"},
		{"web.blue", dns.TypeA, "10.40.1.5 10.40.2.5"},
		{"web.BLUE.patchbay.INTERNAL", dns.TypeA, "10.40.1.5 10.40.2.5"},
		{"my.app", dns.TypeA, "10.40.1.8"},
		{"my.app.blue", dns.TypeA, "10.40.1.8"},
		{"a_b-c", dns.TypeA, "10.40.1.9"},
		{"four", dns.TypeAAAA, ""},
		{"four.blue", dns.TypeMX, ""},
		{"starts", dns.TypeA, ""}, // it has no address yet
		{"blue", dns.TypeA, ""},
		{"blue.patchbay.internal", dns.TypeA, ""},
		{"nobody", dns.TypeA, "NXDOMAIN"},
		{"nobody.blue", dns.TypeA, forwarded}, // if there is a public domain "blue", another server has the name
		{"blue", dns.TypeSOA, forwarded},
		{"nobody.blue.patchbay.internal", dns.TypeAAAA, "NXDOMAIN"},
		{"web.blue.blue", dns.TypeA, forwarded},
		{"web.blue.blue.patchbay.internal", dns.TypeA, "NXDOMAIN"},
		{"only", dns.TypeA, "NXDOMAIN"}, // a name of another network
		{"only.red.net", dns.TypeA, forwarded},
		{"web.patchbay.internal", dns.TypeA, forwarded},
		{"example.org", dns.TypeA, forwarded},
		{"notblue", dns.TypeA, "NXDOMAIN"},
		{"web.notblue", dns.TypeA, forwarded},
		{"org", dns.TypeA, "NXDOMAIN"}, // a bare name
		{"org", dns.TypeDS, forwarded},
		{".", dns.TypeNS, forwarded},
		{"6.1.40.10.in-addr.arpa", dns.TypePTR, "four.blue.Patchbay.internal."},
		{"6.1.40.10.IN-ADDR.arpa", dns.TypeTXT, ""},
		{"99.1.40.10.in-addr.arpa", dns.TypePTR, "NXDOMAIN"},
		{"1.2.0.192.in-addr.arpa", dns.TypePTR, forwarded},
		{"2.0.192.in-addr.arpa", dns.TypePTR, forwarded},
		{"7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.4.d.f.ip6.arpa", dns.TypePTR, "db.blue.Patchbay.internal."},
		{"8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.4.d.f.ip6.arpa", dns.TypePTR, "NXDOMAIN"},
		{"web", dns.TypeAXFR, "REFUSED"},
	} {
		reply, ours := handler{s, "blue"}.answer(query(tc.name, tc.qtype), netip.MustParseAddr("10.40.3.3"))
		got := forwarded
		if ours {
			got = strings.Join(answers(reply), " ")
			if reply.Rcode != dns.RcodeSuccess {
				got = dns.RcodeToString[reply.Rcode]
			}
		}
		if got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.name, dns.TypeToString[tc.qtype], got, tc.want)
		}
	}
	other := handler{s, "Red.net"}
	if reply, ours := other.answer(query("WEB.red.NET", dns.TypeA), netip.MustParseAddr("10.50.3.3")); !ours || answers(reply)[0] != "10.50.1.5" {
		t.Errorf("the other network: %v", reply)
	}
	stranger, ours := handler{s, "blue"}.answer(query("example.org", dns.TypeA), netip.MustParseAddr("203.0.113.9"))
	if !ours || stranger.Rcode != dns.RcodeRefused {
		t.Errorf("a client from outside: %v", stranger)
	}
}

func TestAnswerForm(t *testing.T) {
	h := handler{&Server{View: testBook()}, "blue"}
	from := netip.MustParseAddr("10.40.3.3")
	for _, tc := range []struct {
		name   string
		change func(*dns.Msg)
		want   int
	}{
		{"opcode", func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		{"questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
		{"class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		{"EDNS", func(m *dns.Msg) { m.SetEdns0(4096, true); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
	} {
		q := query("web", dns.TypeA)
		tc.change(q)
		if reply := h.reply(q, from, true); reply.Rcode != tc.want || reply.Id != q.Id {
			t.Errorf("%s: %v", tc.name, reply)
		}
	}
	orders := make(map[string]bool)
	for range 50 {
		reply := h.reply(query("web", dns.TypeA), from, true)
		if head := reply.Answer[0].Header(); head.Ttl != 5 || !reply.Authoritative || !reply.RecursionAvailable {
			t.Fatalf("%v", reply)
		}
		orders[reply.Answer[0].String()] = true
	}
	if len(orders) != 2 {
		t.Errorf("the order is always the same")
	}
}

// upstream is a server with fixed answers that counts queries.
type upstream struct {
	at      netip.AddrPort
	asked   atomic.Int32
	mu      sync.Mutex
	queries []string
}

// newUpstream answers A queries with an address, or with the function answer.
func newUpstream(t *testing.T, at string, answer func(*dns.Msg, bool) *dns.Msg) *upstream {
	t.Helper()
	u := &upstream{at: netip.MustParseAddrPort(at)}
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		u.asked.Add(1)
		u.mu.Lock()
		u.queries = append(u.queries, q.Question[0].Name)
		u.mu.Unlock()
		_, udp := w.RemoteAddr().(*net.UDPAddr)
		if reply := answer(q, udp); reply != nil {
			w.WriteMsg(reply) //nolint:errcheck // a test
		}
	})
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		d := &dns.Server{Addr: at, Net: network, Handler: h, NotifyStartedFunc: func() { close(started) }}
		go d.ListenAndServe() //nolint:errcheck // a test
		select {
		case <-started:
		case <-time.After(time.Minute):
			t.Fatalf("upstream %s does not start", at)
		}
		t.Cleanup(func() { d.Shutdown() }) //nolint:errcheck // a test
	}
	return u
}

// address answers A queries with one address.
func address(a string) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg {
		reply := new(dns.Msg).SetReply(q)
		reply.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(a),
		}}
		return reply
	}
}

func rcode(code int) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg { return new(dns.Msg).SetRcode(q, code) }
}

func serve(t *testing.T, s *Server, want map[string]string) {
	t.Helper()
	list := make(map[netip.Addr]string)
	for a, network := range want {
		list[netip.MustParseAddr(a)] = network
	}
	must(t, s.Listen(list))
	t.Cleanup(s.Close)
}

func exchangeWith(t *testing.T, server string, q *dns.Msg, network string) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: 15 * time.Second}
	reply, _, err := c.Exchange(q, net.JoinHostPort(server, "53"))
	must(t, err)
	reply.Compress = true // Len is then the received size
	return reply
}

func TestForward(t *testing.T) {
	good := newUpstream(t, "127.0.1.1:53", address("192.0.2.80"))
	failing := newUpstream(t, "127.0.1.2:53", rcode(dns.RcodeServerFailure))
	other := newUpstream(t, "127.0.1.3:53", func(q *dns.Msg, udp bool) *dns.Msg {
		q.Question[0].Name = "other.example."
		return address("192.0.2.81")(q, udp)
	})
	long := newUpstream(t, "127.0.1.4:53", func(q *dns.Msg, udp bool) *dns.Msg {
		reply := new(dns.Msg).SetReply(q)
		if reply.Truncated = udp; udp {
			return reply
		}
		for i := range 2000 {
			reply.Answer = append(reply.Answer, address(fmt.Sprintf("192.0.%d.%d", i/250, i%250))(q, false).Answer...)
		}
		return reply
	})
	missing := newUpstream(t, "127.0.1.5:53", rcode(dns.RcodeNameError))
	hole, err := net.ListenPacket("udp", "127.0.1.99:53")
	must(t, err)
	defer hole.Close() //nolint:errcheck // a test
	silent, closed := netip.MustParseAddrPort("127.0.1.99:53"), netip.MustParseAddrPort("127.0.1.98:53")
	ask := func(q *dns.Msg, network string, upstreams ...netip.AddrPort) *dns.Msg {
		t.Helper()
		s := &Server{View: testBook(), Upstreams: upstreams, Log: t.Logf}
		serve(t, s, map[string]string{"127.0.2.1": "blue"})
		defer s.Close()
		return exchangeWith(t, "127.0.2.1", q, network)
	}
	for name, upstreams := range map[string][]netip.AddrPort{
		"first": {good.at}, "after a refusal": {failing.at, good.at}, "after silence": {silent, good.at}, "after a closed port": {closed, good.at},
		"after a wrong answer": {other.at, good.at}, "not ourselves": {netip.MustParseAddrPort("127.0.2.1:53"), good.at},
	} {
		q := query("WWW.example.org", dns.TypeA)
		reply := ask(q, "udp", upstreams...)
		if len(reply.Answer) != 1 || answers(reply)[0] != "192.0.2.80" || reply.Question[0].Name != q.Question[0].Name {
			t.Errorf("%s: %v", name, reply)
		}
	}
	if reply := ask(query("none.example.org", dns.TypeA), "udp", missing.at, good.at); reply.Rcode != dns.RcodeNameError {
		t.Errorf("a name that does not exist: %v", reply)
	}
	if reply := ask(query("x.example.org", dns.TypeA), "udp", failing.at); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("a failing upstream alone: %v", reply)
	}
	if reply := ask(query("x.example.org", dns.TypeA), "udp", netip.MustParseAddrPort("127.0.0.11:53")); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("no upstream left: %v", reply)
	}
	if reply := ask(query("long.example.org", dns.TypeA), "udp", long.at); !reply.Truncated {
		t.Errorf("a long answer by UDP is not cut short")
	}
	if reply := ask(query("long.example.org", dns.TypeA), "tcp", long.at); len(reply.Answer) != 2000 {
		t.Errorf("a long answer by TCP: %d records", len(reply.Answer))
	}
	if reply := ask(query("www.blue", dns.TypeA), "udp", good.at); len(reply.Answer) != 1 {
		t.Errorf("a name of another server below ours: %v", reply)
	}
	before := good.asked.Load()
	asks := netip.MustParseAddrPort("127.0.0.1:53") // the source of our queries
	if reply := ask(query("www.example.org", dns.TypeA), "udp", asks); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("the client was asked: %v", reply)
	}
	ask(query("nobody", dns.TypeA), "udp", good.at)
	ask(query("nobody", dns.TypeAAAA), "tcp", good.at)
	if n := good.asked.Load() - before; n != 0 {
		t.Errorf("names of containers were sent outside: %v", good.queries)
	}
}

// If a datagram is too small for a name's many addresses, they come by TCP.
func TestSizes(t *testing.T) {
	serve(t, &Server{View: testBook()}, map[string]string{"127.0.2.1": "blue", "::1": "blue"})
	for _, at := range []string{"127.0.2.1", "::1"} {
		reply := exchangeWith(t, at, query("many", dns.TypeA), "udp")
		if !reply.Truncated || reply.Len() > dns.MinMsgSize || len(reply.Answer) == 0 {
			t.Errorf("%s: %d bytes, %d records", at, reply.Len(), len(reply.Answer))
		}
		q := query("many", dns.TypeA)
		q.SetEdns0(4096, false)
		reply = exchangeWith(t, at, q, "udp")
		if !reply.Truncated || reply.Len() > maxUDP || reply.Len() < dns.MinMsgSize || reply.IsEdns0() == nil {
			t.Errorf("%s, EDNS: %d bytes, %d records", at, reply.Len(), len(reply.Answer))
		}
		if reply := exchangeWith(t, at, query("many", dns.TypeA), "tcp"); len(reply.Answer) != 200 {
			t.Errorf("%s, TCP: %d records", at, len(reply.Answer))
		}
		if reply := exchangeWith(t, at, query("crowd", dns.TypeA), "tcp"); len(reply.Answer) != maxRecords {
			t.Errorf("%s, more than a message has room for: %d records", at, len(reply.Answer))
		}
	}
}

// The server follows changes of the host's resolv.conf, and never writes it.
func TestResolvConf(t *testing.T) {
	newUpstream(t, "127.0.1.1:53", address("192.0.2.1"))
	newUpstream(t, "127.0.1.2:53", address("192.0.2.2"))
	path := filepath.Join(t.TempDir(), "resolv.conf")
	var mu sync.Mutex
	var logged []string
	s := &Server{View: testBook(), ResolvConf: path, Log: func(f string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		logged = append(logged, fmt.Sprintf(f, args...))
	}}
	serve(t, s, map[string]string{"127.0.2.1": "blue"})
	ask := func() *dns.Msg { return exchangeWith(t, "127.0.2.1", query("example.org", dns.TypeA), "udp") }
	for range 3 {
		if reply := ask(); reply.Rcode != dns.RcodeServerFailure {
			t.Errorf("without a file: %v", reply)
		}
	}
	if mu.Lock(); len(logged) != 1 || !strings.Contains(logged[0], "no such file") {
		t.Errorf("logged %q", logged)
	}
	mu.Unlock()
	for i, text := range []string{
		"# none\nsearch example\nnameserver 127.0.1.1\n",
		"nameserver 127.0.2.1\nnameserver 127.0.0.11\nnameserver nonsense\nnameserver 127.0.1.2\n",
	} {
		must(t, os.WriteFile(path+"~", []byte(text), 0o600))
		must(t, os.Rename(path+"~", path))
		if reply := ask(); len(reply.Answer) != 1 || answers(reply)[0] != fmt.Sprintf("192.0.2.%d", i+1) {
			t.Errorf("%q: %v", text, reply)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("the file: %q, %v", now, err)
		}
	}
}
