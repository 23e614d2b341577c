// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// lines is a log for many goroutines.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(s string) bool { return strings.Contains(s, part) })
}

// However many lines come, the log gets a few of them and the number of the others.
func TestFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		s := &Server{Log: log.add}
		for n := range 1000 {
			s.logf("line %d", n)
		}
		time.Sleep(lineInterval + time.Second)
		s.logf("later")
		s.Close()
		if len(log.all) != maxLines+2 || log.all[maxLines] != "names: 990 more lines within 1m0s were left out" || log.all[maxLines+1] != "later" {
			t.Errorf("%d lines: %q", len(log.all), log.all)
		}
	})
}

// A query that cannot be packed is not a server's failure. A client that sends such queries fills no
// log, and moves no server to the end of the order.
func TestSignedQueries(t *testing.T) {
	good := newUpstream(t, "127.0.1.1:53", address("192.0.2.80"))
	var log lines
	s := &Server{View: testBook(), Upstreams: []netip.AddrPort{good.at}, Log: log.add}
	serve(t, s, map[string]string{"127.0.2.1": "blue"})
	for range 20 {
		q := query("www.example.org", dns.TypeA).SetTsig("key.", dns.HmacSHA256, 300, time.Now().Unix())
		c := dns.Client{Timeout: 15 * time.Second, TsigSecret: map[string]string{"key.": "c2VjcmV0"}}
		if reply, _, err := c.Exchange(q, "127.0.2.1:53"); reply == nil || reply.Rcode != dns.RcodeNotAuth {
			t.Fatalf("%v, %v", reply, err)
		}
		if reply := exchangeWith(t, "127.0.2.1", query("www.example.org", dns.TypeA), "udp"); len(reply.Answer) != 1 {
			t.Fatalf("%v", reply)
		}
	}
	if len(log.all) > 4 { // a busy machine may log a line
		t.Errorf("it logged %q", log.all)
	}
}

// A server that does not answer is asked last. It is also tried again while others answer.
func TestFailingLast(t *testing.T) {
	dead, good := netip.MustParseAddrPort("127.0.1.98:53"), newUpstream(t, "127.0.1.1:53", address("192.0.2.80"))
	var log lines
	s := &Server{View: testBook(), Upstreams: []netip.AddrPort{dead, good.at}, Log: log.add}
	serve(t, s, map[string]string{"127.0.2.1": "blue"})
	f, all, now := &s.forward, s.Upstreams, time.Now()
	ask := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); {
			if exchangeWith(t, "127.0.2.1", query("www.example.org", dns.TypeA), "udp"); time.Now().After(end) {
				t.Fatalf("not in a minute: %s: %q", what, log.all)
			}
		}
	}
	ask("it is logged", func() bool { return log.has("127.0.1.98:53 does not answer") })
	f.note(s, good.at, now, nil) // this machine may be slow
	if list, due := f.order(all, now); !slices.Equal(list, []netip.AddrPort{good.at, dead}) || len(due) > 0 {
		t.Errorf("%v, due %v", list, due)
	}
	if list, due := f.order(all, now.Add(time.Hour)); list[0] != good.at || !slices.Equal(due, []netip.AddrPort{dead}) {
		t.Errorf("a while later: %v, due %v", list, due)
	}
	if _, due := f.order(all, now.Add(time.Hour)); len(due) > 0 {
		t.Errorf("%v is tried twice at once", due)
	}
	newUpstream(t, dead.String(), address("192.0.2.81"))
	ask("it answers", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, failing := f.failing[dead]; failing {
			f.failing[dead] = time.Time{} // it is due
		}
		return log.has("127.0.1.98:53 answers again")
	})
	if list, _ := f.order(all, now); list[0] != dead {
		t.Errorf("%v", list)
	}
}

// One query takes long, and the server answers others meanwhile. That is no failure of the server.
func TestSlowName(t *testing.T) {
	s := &Server{}
	f, at := &s.forward, netip.MustParseAddrPort("192.0.2.53:53")
	begun := time.Now()
	f.note(s, at, begun, nil)
	f.answered[at] = begun.Add(time.Second)
	f.note(s, at, begun, errMismatch)
	if len(f.failing) > 0 {
		t.Error("it is failing")
	}
	f.note(s, at, begun.Add(2*time.Second), errMismatch)
	if len(f.failing) == 0 {
		t.Error("it is not failing")
	}
}

// A server does not answer for one name. It is avoided only if it does not answer for the root either.
func TestProbe(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	root := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Name == "." {
			w.WriteMsg(new(dns.Msg).SetReply(q)) //nolint:errcheck // the client sees it
		}
	})}
	go root.ActivateAndServe() //nolint:errcheck // Shutdown ends it
	defer root.Shutdown()      //nolint:errcheck // the end of the test
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	alive, dead := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(closed.LocalAddr().String())
	closed.Close() //nolint:errcheck // so that the kernel refuses what is sent there
	s := &Server{}
	f := &s.forward
	if !f.suspect(alive) || f.suspect(alive) {
		t.Error("two probes at once")
	}
	if err := f.probe(alive, errMismatch); err != nil || !f.suspect(alive) {
		t.Errorf("a server that answers for the root: %v", err)
	}
	f.note(s, alive, time.Now(), nil)
	if _, err := f.try(s, new(dns.Msg).SetQuestion("slow.example.", dns.TypeA), dead, true); err == nil {
		t.Error("nobody answered")
	}
	for end := time.Now().Add(10 * time.Second); !f.fails(dead) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if !f.fails(dead) || f.fails(alive) {
		t.Errorf("avoided: %v %v", f.fails(dead), f.fails(alive))
	}
}
