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

// There are at most three upstream servers, as in glibc, and each has 2 s. A client stops waiting
// after 5 s and then tries once more. By then the last server has answered.
const (
	maxUpstreams = 3
	perUpstream  = 2 * time.Second
)

// forwarder sends queries to upstreams.
type forwarder struct {
	mu     sync.Mutex
	asking map[client]int      // queries in progress, by client
	busy   int                 // the sum of asking
	own    map[netip.Addr]bool // the addresses of this server
	read   stamp               // the version of the file from which from was read
	from   []netip.AddrPort
	failed resident.Failure // the last failure to read the file

	failing  map[netip.AddrPort]time.Time // upstreams that do not answer, and when to try them again
	answered map[netip.AddrPort]time.Time // when each upstream last answered
	probing  map[netip.AddrPort]bool      // upstreams that did not answer one name, and are asked for another
}

// avoid stores the server's own addresses before it listens on them. If resolv.conf named one
// of them, the server would forward queries to itself.
func (f *forwarder) avoid(own map[netip.Addr]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = make(map[netip.Addr]bool, len(own))
	for a := range own {
		f.own[a] = true
	}
}

// begin takes a place for a query. If a client has more than a certain part of the free places,
// it gets no further place. So other clients always find some. Datagrams may have forged source
// addresses, so they must leave some places for TCP.
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

// ask asks one upstream server after the other. Servers that did not answer before come last. It
// leaves out the client itself, because a container may run a resolver that the host uses. If no
// server answers, ask returns SERVFAIL. If a client has too many queries in progress, ask makes the
// client repeat a UDP query by TCP. A sender that forged its address does not get that answer.
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
		return new(dns.Msg).SetRcode(q, dns.RcodeFormatError) // the query itself cannot be packed, which is not the server's fault
	}
	var last *dns.Msg
	list, due := f.order(f.upstreams(s), time.Now())
	for _, upstream := range due {
		go f.try(s, q.Copy(), upstream, udp) //nolint:errcheck // no caller waits for the result
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

// retryEvery is how often a query also goes to a server that did not answer. Meanwhile the client
// gets its answer from another server.
const retryEvery = 30 * time.Second

// order puts servers that did not answer at the end. due lists the servers at the end that must be
// tried in addition.
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

// try asks one server and stores whether it answered.
func (f *forwarder) try(s *Server, q *dns.Msg, upstream netip.AddrPort, udp bool) (*dns.Msg, error) {
	begun := time.Now()
	reply, err := exchange(q, upstream, udp)
	if err == nil || f.fails(upstream) {
		f.note(s, upstream, begun, err)
	} else if f.suspect(upstream) {
		go func() { f.note(s, upstream, begun, f.probe(upstream, err)) }()
	}
	return reply, err
}

func (f *forwarder) fails(upstream netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, failing := f.failing[upstream]
	return failing
}

// suspect reports whether a server must be probed, and no probe of it runs.
func (f *forwarder) suspect(upstream netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.probing[upstream] {
		return false
	}
	if f.probing == nil {
		f.probing = map[netip.AddrPort]bool{}
	}
	f.probing[upstream] = true
	return true
}

// probe asks a server that did not answer for the root's servers, and returns err if there is no answer
// either. A server that answers the probe may have waited for yet another server: a container may ask
// for a name whose server never answers, and must not deprive all others of the upstream server.
func (f *forwarder) probe(upstream netip.AddrPort, err error) error {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.probing, upstream)
	}()
	if _, none := exchange(new(dns.Msg).SetQuestion(".", dns.TypeNS), upstream, true); none != nil {
		return err
	}
	return nil
}

// note logs once that a server stopped answering, and once that it answers again. If the server
// has answered another query since this one began, it counts as answering: it may itself be
// waiting for another server. The log does not contain the query.
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

// errMismatch means that an answer is for another question.
var errMismatch = errors.New("the answer is to another question")

// exchange sends a query by UDP or TCP, as the client did. It returns a truncated answer as it
// is, and the client repeats the query by TCP. The query gets a new id and a new source port. So
// no program outside can guess them from the container's query.
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

// upstreams returns the servers to ask. It leaves out those that would ask this server: its own
// addresses, and Docker's resolver, which forwards to the server of a container.
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

// reread reads the file if it has changed. If the file cannot be read, the servers stay,
// because another program may be writing it.
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

// parseResolvConf parses the nameserver lines of resolv.conf(5). It returns each server once.
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
