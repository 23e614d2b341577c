// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

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

// View is the source of names. Its methods must be safe for concurrent use and must not
// block. Names are passed in lower case and without a final dot.
type View interface {
	// Addrs returns the addresses of a name in a network, of both families; ok reports
	// whether the name exists.
	Addrs(network, name string) (addrs []netip.Addr, ok bool)
	// Names returns the names of an address in a network.
	Names(network string, addr netip.Addr) []string
	// Contains reports whether an address lies in the network's ranges.
	Contains(network string, addr netip.Addr) bool
}

// Server is a resolver. Fields are set before the first Listen.
type Server struct {
	View   View
	Domain string // a further suffix, such as "patchbay.internal"; "" is none
	Port   uint16 // 0: 53

	// Upstreams are asked for all other names, in turn. Empty: those of ResolvConf, which
	// is read again when it changes; "" is /etc/resolv.conf.
	Upstreams  []netip.AddrPort
	ResolvConf string

	// Ports returns the number of the bridge port in a network that an address is behind,
	// greater than 0; 0 if it is unknown. The limits for one container count by it, because
	// a container may have many addresses, or forge them. Nil: each address counts by
	// itself.
	Ports func(network string, addr netip.Addr) int

	Log func(format string, args ...any) // may be nil

	mu        sync.Mutex
	listening map[netip.Addr]*listener
	forward   forwarder
	lines     logLimiter
}

// listener is one address with its two sockets.
type listener struct {
	network string
	servers []*dns.Server
	sockets []io.Closer
}

// Listen makes the server listen on exactly these addresses, each for its network. It
// changes only what differs, and does not disturb queries on the other addresses. The
// addresses need not exist yet (IP_FREEBIND): a gateway's comes with the first container.
// The error joins those of the addresses that failed.
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

// Close stops listening.
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

// Limits. A query takes at most a few KB, and a forwarded one some seconds.
const (
	maxForwards = 256 // at once; more are refused
	maxConns    = 64  // TCP, at once and for each address; more wait

	partOfFree = 3               // one container gets a third of the free places: with UDP 48 if it is alone, and five leave 72
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
		return nil, fmt.Errorf("answer names of network %s: %w", network, err)
	}
	tcp, err := conf.Listen(context.Background(), "tcp", at)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("answer names of network %s: %w", network, err), udp.Close())
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

// serve returns after the server has started, so that it can be shut down.
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

// close does not wait for forwarded queries, as the library would with the sockets open: a
// client without an answer asks again. The sockets are closed first because only the first
// Close of a socket waits until the address is free.
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

// freebind allows an address that no link has yet. UDP does not need SO_REUSEADDR: with it
// two servers could share the address unawares, and each would get some of the queries.
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

// client is the unit that limits count for: a port of a network's bridge, or one address.
// All addresses without a known port are one client. UDP counts separately, since its
// addresses may be forged.
type client struct {
	network string
	udp     bool
	port    int
	addr    netip.Addr
}

func (s *Server) client(network string, from netip.Addr, udp bool) client {
	if s.Ports == nil || s.forward.isOwn(from) { // a process of the host
		return client{network: network, udp: udp, addr: from}
	}
	return client{network: network, udp: udp, port: s.Ports(network, from)}
}

// limit allows a listener some connections at once; more wait to be accepted. One container
// gets fewer, so that it cannot take all of them.
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

// Accept waits for a slot after it has the connection: Close of the listener could not end
// an earlier wait.
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

// may reports whether a container may have n connections: a part of the free ones, as with
// queries, so that a dozen greedy containers leave some to others.
func (l *limited) may(n int) bool {
	free := cap(l.slots) - len(l.slots)
	return n == 1 || n <= free/partOfFree
}

// slot waits for a slot: after the time that a connection may last and be silent, all
// others have ended.
func (l *limited) slot() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	case <-time.After(life + idle):
		return false
	}
}

// count adds to the connections of a container, and returns their number.
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

// SetReadDeadline limits all reads together: a client that sends a little all the time
// would keep its slot for ever.
func (s *slot) SetReadDeadline(t time.Time) error {
	if t.After(s.ends) {
		t = s.ends
	}
	return s.Conn.SetReadDeadline(t)
}

// Close frees the slot.
func (s *slot) Close() error {
	defer s.free()
	return s.Conn.Close()
}
