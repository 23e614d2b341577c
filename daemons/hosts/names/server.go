// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package names resolves the names of containers on other hosts. Its server listens on the
// gateway addresses of those networks for which the operator has enabled it. It writes no file.
// A container finds the server through the DNS servers in its CNI result, or through docker run
// --dns. The rest of the container's resolv.conf belongs to other programs (the lesson of
// moby#17190).
//
// # What is answered
//
// A query belongs to the network at whose address it arrives. The server looks up NAME,
// NAME.NETWORK and, if a domain is set, NAME.NETWORK.DOMAIN in the View. It answers A and AAAA,
// and PTR for their addresses, without regard to case. If a name has several addresses, they
// come in random order. A query for another type, or for a name without an address of the
// wanted family, gets no records (NODATA).
//
// The server denies a name (NXDOMAIN) only in three cases: the name has no dot, it is below
// NETWORK.DOMAIN, or it is the reverse name of an address in the network's own ranges. Below
// NETWORK alone other servers may have names, because a network may well be called "dev". No
// answer has an SOA record, so that no client caches a negative answer. Positive answers are
// valid for 5 seconds. The server refuses clients without an address of the network: otherwise
// it would be an open resolver for everything that can reach the host.
//
// # What is forwarded
//
// All other queries go to the servers of the host's resolv.conf, in their order. A server that
// does not answer is asked last. Twice a minute a query also goes to that server, while the
// client gets its answer from another one.
//
// An unknown name without a dot is not forwarded, because it is mistyped or belonged to a
// container that is gone. Outside servers need not learn the names of containers, and must not answer in a
// container's place. Queries about a top-level domain itself (NS, SOA, DS, DNSKEY) are forwarded.
//
// # Limits for one client
//
// A container may have many addresses, so the server counts the queries in progress per bridge
// port, which Ports returns. A container can also forge the source address of a datagram, and a
// datagram does not show its port. A forged datagram counts for the container whose address it
// has. All datagrams with addresses of no container count together. So that datagrams cannot
// take all places, the server reserves some for TCP. A client that gets no place receives an
// empty answer with the TC bit. It then repeats the query by TCP, where it cannot forge an
// address.
package names

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// View is where the server finds names. Its methods must be safe for concurrent use and must
// not block. Names are passed to them in lower case and without a final dot.
type View interface {
	// Addrs returns the addresses of a name in a network, of both families. ok reports whether
	// the name exists.
	Addrs(network, name string) (addrs []netip.Addr, ok bool)
	// Names returns the names of an address in a network.
	Names(network string, addr netip.Addr) []string
	// Contains reports whether an address lies in the network's ranges.
	Contains(network string, addr netip.Addr) bool
}

// Server is a DNS server. Its fields must be set before the first Listen.
type Server struct {
	View   View
	Domain string // another suffix of names, such as "patchbay.internal"; "" means none
	Port   uint16 // 0 means 53

	// Upstreams are the servers to ask for all other names, in order. If there are none, the server
	// reads them from ResolvConf, and again when that file changes. If ResolvConf is "", the file is
	// /etc/resolv.conf.
	Upstreams  []netip.AddrPort
	ResolvConf string

	// Ports returns the number of the bridge port behind which an address of a network is. If the
	// port is not known, Ports returns 0. A container may have many addresses, or forge them, so the
	// limits for one container count per port. If Ports is nil, they count per address.
	Ports func(network string, addr netip.Addr) int

	Log func(format string, args ...any) // may be nil

	mu        sync.Mutex
	listening map[netip.Addr]*listener
	forward   forwarder
	lines     logLimiter
}

// listener is one address with its UDP and its TCP socket.
type listener struct {
	network string
	servers []*dns.Server
	sockets []io.Closer
}

// Listen makes the server listen on exactly these addresses, each for its network. It changes
// only what differs, and does not disturb queries on the other addresses. A gateway's address
// comes with the first container, so the addresses need not exist yet (IP_FREEBIND). The error
// joins the errors of all addresses that failed.
func (s *Server) Listen(want map[netip.Addr]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening == nil {
		s.listening = make(map[netip.Addr]*listener)
	}
	for addr, l := range s.listening {
		if network, ok := want[addr]; !ok || network != l.network {
			l.close()
			delete(s.listening, addr)
		}
	}
	s.forward.avoid(want)
	var errs []error
	for addr, network := range want {
		if s.listening[addr] != nil {
			continue
		}
		l, err := s.open(addr, network)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.listening[addr] = l
	}
	return errors.Join(errs...)
}

// Mute returns those of the addresses at which the server does not listen.
func (s *Server) Mute(want map[netip.Addr]string) (list []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr := range want {
		if s.listening[addr] == nil {
			list = append(list, addr)
		}
	}
	return list
}

// Close stops the server.
func (s *Server) Close() {
	s.Listen(nil) //nolint:errcheck // closing does not fail
	s.lines.end(s.Log)
}

func (s *Server) port() uint16 {
	if s.Port == 0 {
		return 53
	}
	return s.Port
}

func (s *Server) logf(format string, args ...any) {
	if s.Log != nil {
		s.lines.print(s.Log, format, args...)
	}
}

// These are limits. A query takes at most a few KB. A forwarded query may take some seconds.
const (
	maxForwards = 256 // queries in progress; more are refused
	maxConns    = 64  // TCP connections of one address; more wait

	partOfFree = 3               // one container gets a third of the free places, so the places that it leaves are enough for others
	idle       = 5 * time.Second // how long a TCP connection may be silent
	life       = 2 * idle        // how long a TCP connection may last
	maxUDP     = 1232            // bytes: fits every path without fragments (DNS flag day 2020)
)

// open opens both sockets of an address.
func (s *Server) open(addr netip.Addr, network string) (*listener, error) {
	at := net.JoinHostPort(addr.String(), strconv.Itoa(int(s.port())))
	conf := net.ListenConfig{Control: freebind}
	udp, err := conf.ListenPacket(context.Background(), "udp", at)
	if err != nil {
		return nil, cannot(network, err)
	}
	tcp, err := conf.Listen(context.Background(), "tcp", at)
	if err != nil {
		return nil, errors.Join(cannot(network, err), udp.Close())
	}
	l := &listener{network: network, sockets: []io.Closer{udp, tcp}}
	h := handler{s, network}
	l.serve(&dns.Server{PacketConn: udp, Handler: h, UDPSize: maxUDP}, s.logf)
	l.serve(&dns.Server{
		Listener: limit(resident.PatientListener(tcp, s.logf), func(from netip.Addr) client { return s.client(network, from, false) }), Handler: h,
		ReadTimeout: idle, WriteTimeout: idle, IdleTimeout: func() time.Duration { return idle },
	}, s.logf)
	return l, nil
}

// cannot returns the error for an address at which the server cannot listen. Containers that know it still ask
// there, and reach the server as soon as it has the port.
func cannot(network string, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another program answers there: let it listen at its own addresses alone", err)
	}
	return fmt.Errorf("answer names of network %s: %w", network, err)
}

// serve returns when the server has started, because it can be shut down only then.
func (l *listener) serve(d *dns.Server, logf func(string, ...any)) {
	started, ended := make(chan struct{}), make(chan struct{})
	d.NotifyStartedFunc = func() { close(started) }
	l.servers = append(l.servers, d)
	go func() {
		defer close(ended)
		if err := d.ActivateAndServe(); err != nil && !errors.Is(err, net.ErrClosed) {
			logf("answer names of network %s: %v", l.network, err)
		}
	}()
	select {
	case <-started:
	case <-ended:
	}
}

// close stops both servers without waiting for forwarded queries. A client without an answer asks
// again. The library would wait while the sockets are open. So close closes the sockets itself
// first: only the first Close of a socket waits until the address is free.
func (l *listener) close() {
	for _, c := range l.sockets {
		_ = c.Close() // nothing is left to write
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range l.servers {
		_ = d.ShutdownContext(ctx) // its socket is closed
	}
}

// freebind allows an address that no link has yet. It does not set SO_REUSEADDR, which UDP does
// not need. With that option, two servers could use one address without noticing, and each would
// get some of the queries.
func freebind(network, _ string, c syscall.RawConn) error {
	var err error
	control := c.Control(func(fd uintptr) {
		level, option := unix.SOL_IP, unix.IP_FREEBIND
		if network == "udp6" || network == "tcp6" {
			level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
		}
		err = unix.SetsockoptInt(int(fd), level, option, 1)
	})
	return errors.Join(control, err)
}

// client is the unit that a limit counts: a port of a network's bridge, or one address. All
// addresses without a known port are one client. UDP counts separately, because its source
// addresses may be forged.
type client struct {
	network string
	udp     bool
	port    int
	addr    netip.Addr
}

func (s *Server) client(network string, from netip.Addr, udp bool) client {
	if s.Ports == nil || s.forward.isOwn(from) { // a process of this host
		return client{network: network, udp: udp, addr: from}
	}
	return client{network: network, udp: udp, port: s.Ports(network, from)}
}

// limit limits the number of open connections of a listener. Further connections wait to be
// accepted. One container gets only some of the connections.
func limit(l net.Listener, of func(netip.Addr) client) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, maxConns), of: of, open: make(map[client]int)}
}

type limited struct {
	net.Listener
	slots chan struct{}
	of    func(netip.Addr) client

	mu   sync.Mutex
	open map[client]int
}

// Accept first accepts a connection and then waits for a slot. If Accept waited before it
// accepts, closing the listener could not end the wait.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := l.of(addrOf(c.RemoteAddr()))
		if !l.may(l.count(from, 1)) || !l.slot() {
			l.count(from, -1)
			c.Close() //nolint:errcheck // it was not used
			continue
		}
		return &slot{Conn: c, ends: time.Now().Add(life), free: sync.OnceFunc(func() { <-l.slots; l.count(from, -1) })}, nil
	}
}

// may reports whether a container may have n connections. As with queries, it gets a part of the
// free ones. So even a dozen greedy containers leave some to others.
func (l *limited) may(n int) bool {
	free := cap(l.slots) - len(l.slots)
	return n == 1 || n <= free/partOfFree
}

// slot waits for a slot. It waits at most as long as a connection may last and be silent. By then
// all other connections have ended.
func (l *limited) slot() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	case <-time.After(life + idle):
		return false
	}
}

// count adds n to the number of a container's connections, and returns the result.
func (l *limited) count(from client, n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] += n; l.open[from] == 0 {
		delete(l.open, from)
	}
	return l.open[from]
}

type slot struct {
	net.Conn
	ends time.Time
	free func()
}

// SetReadDeadline also limits the total time of all reads. Otherwise a client that sends a
// little all the time would keep its slot for ever.
func (s *slot) SetReadDeadline(t time.Time) error {
	if t.After(s.ends) {
		t = s.ends
	}
	return s.Conn.SetReadDeadline(t)
}

// Close closes the connection and frees the slot.
func (s *slot) Close() error {
	defer s.free()
	return s.Conn.Close()
}

// logLimiter logs only a few lines in each interval. At the end of the interval it logs how many
// it left out. Containers can cause these lines, and must not fill the host's log.
type logLimiter struct {
	mu    sync.Mutex
	n     int // lines in this interval
	timer *time.Timer
}

const maxLines, lineInterval = 10, time.Minute

func (f *logLimiter) print(log func(string, ...any), format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		f.timer = time.AfterFunc(lineInterval, func() { f.end(log) })
	}
	if f.n++; f.n <= maxLines {
		log(format, args...)
	}
}

// end ends the interval.
func (f *logLimiter) end(log func(string, ...any)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	if more := f.n - maxLines; more > 0 {
		log("names: %d more lines within %v were left out", more, lineInterval)
	}
	f.n = 0
}
