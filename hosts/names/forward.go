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

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// The limits for upstreams are those of glibc: three servers, with 2 s for each. So the
// last one has answered before the client gives up (after 5 s, and then once more).
const (
	maxUpstreams = 3
	perUpstream  = 2 * time.Second
)

// forwarder sends queries to upstreams.
type forwarder struct {
	mu     sync.Mutex
	asking map[client]int      // queries under way, by client
	busy   int                 // the sum of asking
	own    map[netip.Addr]bool // addresses of this server
	read   stamp               // of the file that from was read from
	from   []netip.AddrPort
	failed resident.Failure // to read the file

	failing  map[netip.AddrPort]time.Time // upstreams that do not answer, and when to try them again
	answered map[netip.AddrPort]time.Time // when they last answered
}

// avoid notes the server's own addresses before it listens on them: with one of them in
// resolv.conf, queries would go round in circles.
func (f *forwarder) avoid(own map[netip.Addr]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = make(map[netip.Addr]bool, len(own))
	for a := range own {
		f.own[a] = true
	}
}

// begin takes a place for a query. A client gets another place while it has less than a
// part of the free ones, so that other clients find some however much it asks. Datagrams,
// whose addresses may be forged, leave places for TCP.
func (f *forwarder) begin(from client) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	free := maxForwards - f.busy
	if from.udp {
		free -= maxConns
	}
	if free <= 0 || f.asking[from] > 0 && f.asking[from] >= free/partOfFree {
		return false
	}
	if f.asking == nil {
		f.asking = make(map[client]int)
	}
	f.asking[from]++
	f.busy++
	return true
}

func (f *forwarder) end(from client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy--
	if f.asking[from]--; f.asking[from] == 0 {
		delete(f.asking, from)
	}
}

// isOwn reports whether the server listens at an address.
func (f *forwarder) isOwn(addr netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.own[addr]
}

// ask asks one upstream after the other, failing ones last. It leaves out the client
// itself, which may be a resolver in a container that the host uses, too. ask returns
// SERVFAIL if none answers. If a client has too many queries under way, ask makes it repeat
// a UDP query by TCP; a sender with a forged address does not get that answer.
func (f *forwarder) ask(s *Server, q *dns.Msg, c client, from netip.Addr, udp bool) *dns.Msg {
	if !f.begin(c) {
		reply := fail(q)
		if reply.Truncated = udp; udp {
			reply.Rcode = dns.RcodeSuccess
		}
		return reply
	}
	defer f.end(c)
	if _, err := q.Pack(); err != nil {
		return new(dns.Msg).SetRcode(q, dns.RcodeFormatError) // the query itself cannot be packed; no server is at fault
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

// retryEvery is how often a query also goes to a failing server, beside a healthy one that
// the client waits for.
const retryEvery = 30 * time.Second

// order puts failing servers last. due are those to try beside the others.
func (f *forwarder) order(all []netip.AddrPort, now time.Time) (list, due []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last []netip.AddrPort
	for _, u := range all {
		if _, failing := f.failing[u]; failing {
			last = append(last, u)
		} else {
			list = append(list, u)
		}
	}
	for _, u := range last {
		if len(list) > 0 && now.After(f.failing[u]) {
			f.failing[u] = now.Add(retryEvery)
			due = append(due, u)
		}
	}
	return append(list, last...), due
}

// try asks one server, and notes the outcome.
func (f *forwarder) try(s *Server, q *dns.Msg, upstream netip.AddrPort, udp bool) (*dns.Msg, error) {
	begun := time.Now()
	reply, err := exchange(q, upstream, udp)
	f.note(s, upstream, begun, err)
	return reply, err
}

// note logs once when a server stops answering, and once when it answers again. A server
// that has answered another query since this one began is not failing: it may itself wait
// for the name that a container asks for. The log does not contain the query.
func (f *forwarder) note(s *Server, upstream netip.AddrPort, begun time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil {
		f.failing, f.answered = make(map[netip.AddrPort]time.Time), make(map[netip.AddrPort]time.Time)
	}
	_, failing := f.failing[upstream]
	switch {
	case err == nil:
		f.answered[upstream] = time.Now()
		if failing {
			delete(f.failing, upstream)
			s.logf("upstream server %s answers again", upstream)
		}
	case !failing && !f.answered[upstream].After(begun):
		f.failing[upstream] = time.Now().Add(retryEvery)
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

// errMismatch reports an answer to another question.
var errMismatch = errors.New("the answer is to another question")

// exchange uses the client's transport. It passes a truncated answer on, and the client
// repeats the query by TCP. The query gets an id and a port of its own, which no program
// outside can guess from the container's.
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

// upstreams returns the servers to ask, without those that would ask this one: its own
// addresses, and Docker's embedded resolver, which forwards to a container's server.
func (f *forwarder) upstreams(s *Server) (list []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := s.Upstreams
	if len(from) == 0 {
		path := s.ResolvConf
		if path == "" {
			path = "/etc/resolv.conf"
		}
		if err := f.reread(path); f.failed.Changed(err) && err != nil {
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

// embedded is the address of Docker's resolver inside containers.
var embedded = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// stamp identifies one version of a file.
type stamp struct {
	info os.FileInfo
}

func (a stamp) same(info os.FileInfo) bool {
	return a.info != nil && os.SameFile(a.info, info) && a.info.ModTime().Equal(info.ModTime()) && a.info.Size() == info.Size()
}

// reread reads the file if it changed. If it cannot be read, the servers stay: a write may
// be in progress.
func (f *forwarder) reread(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read upstream servers: %w", err)
	}
	if f.read.same(info) {
		return nil
	}
	text, err := durable.ReadConf(path)
	if err != nil {
		return fmt.Errorf("read upstream servers: %w", err)
	}
	f.read, f.from = stamp{info}, parseResolvConf(string(text))
	if len(f.from) == 0 {
		return fmt.Errorf("read upstream servers: %s names none: only names of containers are answered", path)
	}
	return nil
}

// parseResolvConf parses the nameserver lines (resolv.conf(5)), equal ones once.
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
