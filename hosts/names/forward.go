// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/internal/once"
)

// How upstreams are asked: glibc's three, each for 2 s, so that the last one has
// answered before whoever asked gives us up (5 s, and then once more).
const (
	maxUpstreams = 3
	perUpstream  = 2 * time.Second
)

// forwarder asks upstreams.
type forwarder struct {
	mu     sync.Mutex
	asking map[seat]int        // queries under way, by who asked
	busy   int                 // all of them
	own    map[netip.Addr]bool // where this server listens
	read   stamp               // of the file that servers are from
	from   []netip.AddrPort
	failed once.Failure // of the file

	sick map[netip.AddrPort]time.Time // upstreams that do not answer, and when to try them again
	well map[netip.AddrPort]time.Time // when they answered last
}

// avoid notes the server's own addresses, before it listens on them: a resolv.conf
// that names one of them would send queries round in circles.
func (f *forwarder) avoid(own map[netip.Addr]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = make(map[netip.Addr]bool, len(own))
	for a := range own {
		f.own[a] = true
	}
}

// begin takes a place for a query. Who has some gets another while it has less than
// a part of those that are free: however much it asks, others find some. Datagrams,
// whose addresses may be forged, leave some to connections.
func (f *forwarder) begin(who seat) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	free := maxForwards - f.busy
	if who.udp {
		free -= maxConns
	}
	if free <= 0 || f.asking[who] > 0 && f.asking[who] >= free/partOfFree {
		return false
	}
	if f.asking == nil {
		f.asking = make(map[seat]int)
	}
	f.asking[who]++
	f.busy++
	return true
}

func (f *forwarder) end(who seat) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy--
	if f.asking[who]--; f.asking[who] == 0 {
		delete(f.asking, who)
	}
}

// mine says whether the server listens at an address.
func (f *forwarder) mine(addr netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.own[addr]
}

// ask asks one upstream after the other, sick ones last, but not the one who asks
// us: that is a resolver in a container, which the host uses, too. It answers
// SERVFAIL when none does. When too many queries are under way, who asked by UDP is
// told to come by TCP: who forged its address does not hear it.
func (f *forwarder) ask(s *Server, q *dns.Msg, who seat, from netip.Addr, udp bool) *dns.Msg {
	if !f.begin(who) {
		reply := fail(q)
		if reply.Truncated = udp; udp {
			reply.Rcode = dns.RcodeSuccess
		}
		return reply
	}
	defer f.end(who)
	if _, err := q.Pack(); err != nil {
		return new(dns.Msg).SetRcode(q, dns.RcodeFormatError) // what came cannot be sent: no server is to blame
	}
	var last *dns.Msg
	list, due := f.order(f.upstreams(s), time.Now())
	for _, upstream := range due {
		go f.try(s, q.Copy(), upstream, udp) //nolint:errcheck // no caller waits for it
	}
	for _, upstream := range list {
		if upstream.Addr().Unmap() == from {
			continue
		}
		reply, err := f.try(s, q, upstream, udp)
		if err != nil {
			continue
		}
		last = reply
		if reply.Rcode != dns.RcodeServerFailure && reply.Rcode != dns.RcodeRefused && reply.Rcode != dns.RcodeNotImplemented {
			return reply
		}
	}
	if last == nil {
		return fail(q)
	}
	return last
}

// retryEvery is how often a query goes to a sick server, too, beside one that is
// well and is waited for.
const retryEvery = 30 * time.Second

// order puts sick servers last; due are those to be tried again beside the others.
func (f *forwarder) order(all []netip.AddrPort, now time.Time) (list, due []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last []netip.AddrPort
	for _, u := range all {
		if _, sick := f.sick[u]; sick {
			last = append(last, u)
		} else {
			list = append(list, u)
		}
	}
	for _, u := range last {
		if len(list) > 0 && now.After(f.sick[u]) {
			f.sick[u] = now.Add(retryEvery)
			due = append(due, u)
		}
	}
	return append(list, last...), due
}

// try asks one server, and notes how it is.
func (f *forwarder) try(s *Server, q *dns.Msg, upstream netip.AddrPort, udp bool) (*dns.Msg, error) {
	begun := time.Now()
	reply, err := exchange(q, upstream, udp)
	f.tell(s, upstream, begun, err)
	return reply, err
}

// tell logs a server that does not answer once, until it answers again. One that
// has answered another query since this one begun is well: it may wait itself for
// what a container asks. The log does not say what was asked.
func (f *forwarder) tell(s *Server, upstream netip.AddrPort, begun time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sick == nil {
		f.sick, f.well = make(map[netip.AddrPort]time.Time), make(map[netip.AddrPort]time.Time)
	}
	_, sick := f.sick[upstream]
	switch {
	case err == nil:
		f.well[upstream] = time.Now()
		if sick {
			delete(f.sick, upstream)
			s.logf("upstream server %s answers again", upstream)
		}
	case !sick && !f.well[upstream].After(begun):
		f.sick[upstream] = time.Now().Add(retryEvery)
		s.logf("upstream server %s does not answer: %v", upstream, err)
	}
}

func fail(q *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	reply.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(maxUDP, opt.Do())
	}
	return reply
}

// errMismatch is an answer to something else.
var errMismatch = errors.New("the answer is to another question")

// exchange asks the way it was asked. A truncated answer is passed on: whoever
// asked comes again by TCP. The query gets an id and a port of its own, so nobody
// outside can guess them from the container's.
func exchange(q *dns.Msg, upstream netip.AddrPort, udp bool) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), perUpstream)
	defer cancel()
	query := q.Copy()
	query.Id = dns.Id()
	if opt := query.IsEdns0(); opt != nil {
		opt.SetUDPSize(maxUDP)
	}
	client := dns.Client{Net: "tcp", Timeout: perUpstream}
	if udp {
		client.Net = "udp"
	}
	reply, _, err := client.ExchangeContext(ctx, query, upstream.String())
	if err != nil {
		return nil, err
	}
	asked := query.Question[0]
	same := len(reply.Question) == 1 && strings.EqualFold(reply.Question[0].Name, asked.Name) &&
		reply.Question[0].Qtype == asked.Qtype && reply.Question[0].Qclass == asked.Qclass
	if !reply.Response || !same {
		return nil, errMismatch
	}
	reply.Question[0].Name = asked.Name
	return reply, nil
}

// upstreams are the servers to ask, without those that would ask us: our own
// addresses, and Docker's embedded resolver, which forwards to us where we are a
// container's server.
func (f *forwarder) upstreams(s *Server) (list []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := s.Upstreams
	if len(from) == 0 {
		path := s.ResolvConf
		if path == "" {
			path = "/etc/resolv.conf"
		}
		if err := f.reread(path); f.failed.News(err) && err != nil {
			s.logf("%v", err)
		}
		from = f.from
	}
	for _, u := range from {
		a := u.Addr().Unmap()
		own := f.own[a.WithZone("")] && u.Port() == s.port()
		if !own && a != embedded && len(list) < maxUpstreams {
			list = append(list, u)
		}
	}
	return list
}

// embedded is where Docker's resolver listens inside containers.
var embedded = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// stamp tells a file from what it was.
type stamp struct {
	info os.FileInfo
}

func (a stamp) same(info os.FileInfo) bool {
	return a.info != nil && os.SameFile(a.info, info) && a.info.ModTime().Equal(info.ModTime()) && a.info.Size() == info.Size()
}

// reread reads the file if it changed. One that cannot be read leaves the servers
// as they were: it may be in the middle of being written.
func (f *forwarder) reread(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read upstream servers: %w", err)
	}
	if f.read.same(info) {
		return nil
	}
	text, err := atomicfile.ReadConf(path)
	if err != nil {
		return fmt.Errorf("read upstream servers: %w", err)
	}
	f.read, f.from = stamp{info}, parseResolvConf(string(text))
	if len(f.from) == 0 {
		return fmt.Errorf("read upstream servers: %s names none: only names of containers are answered", path)
	}
	return nil
}

// parseResolvConf reads the nameserver lines (resolv.conf(5)), equal ones once.
func parseResolvConf(text string) (list []netip.AddrPort) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(words[1])
		if u := netip.AddrPortFrom(addr, 53); err == nil && !slices.Contains(list, u) {
			list = append(list, u)
		}
	}
	return list
}
