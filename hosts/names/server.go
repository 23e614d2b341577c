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

	"github.com/patchbay-net/patchbay/internal/accept"
)

// View is what is known of names. Its methods are called by many goroutines at
// once and must not wait for anything. Names are passed in lower case and without
// a dot at the end.
type View interface {
	// Addrs are the addresses of a name in a network, of both families; ok says
	// that the name exists.
	Addrs(network, name string) (addrs []netip.Addr, ok bool)
	// Names are what an address is called in a network.
	Names(network string, addr netip.Addr) []string
	// Contains says whether an address lies in the network's ranges.
	Contains(network string, addr netip.Addr) bool
}

// Server is a resolver. Fields are set before the first Listen.
type Server struct {
	View   View
	Domain string // a further suffix, such as "patchbay.internal"; "" is none
	Port   uint16 // 0: 53

	// Upstreams are asked for everything else, in turn. Empty: those of ResolvConf,
	// which is read again when it changes; "" is /etc/resolv.conf.
	Upstreams  []netip.AddrPort
	ResolvConf string

	// Ports says at which port of its network's bridge an address is, a number above
	// 0; 0 when nobody knows. What one container may ask at once is counted by it:
	// one may have many addresses, or forge them. Nil: each address counts by itself.
	Ports func(network string, addr netip.Addr) int

	Log func(format string, args ...any) // may be nil

	mu        sync.Mutex
	listening map[netip.Addr]*listener
	forward   forwarder
	lines     few
}

// listener is one address with its two sockets.
type listener struct {
	network string
	servers []*dns.Server
	sockets []io.Closer
}

// Listen makes the server listen on exactly these addresses, each for its
// network. It changes what differs: queries under way on the others are not
// disturbed. The addresses need not be there yet (IP_FREEBIND): a gateway's comes
// with the first container. The error tells which could not be had, joined.
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

// Close ends listening.
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

// Limits. A query takes at most a few KB, and one that is forwarded some seconds.
const (
	maxForwards = 256 // at once; more are refused
	maxConns    = 64  // TCP, at once and for each address; more wait

	partOfFree = 3               // one container has a third of what is left: by UDP 48 alone, and 72 stay free of five
	idle       = 5 * time.Second // how long a TCP connection may say nothing
	life       = 2 * idle        // how long it may ask
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
		Listener: limit(accept.Patient(tcp, s.logf), func(from netip.Addr) seat { return s.seat(network, from, false) }), Handler: h,
		ReadTimeout: idle, WriteTimeout: idle, IdleTimeout: func() time.Duration { return idle },
	}, s.logf)
	return l, nil
}

// serve returns when the server has started, so that it can be shut down.
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

// close does not wait for queries that are being forwarded, which the library
// would, with the sockets open: whoever asked asks again. The sockets are closed
// here first: only the first Close of a socket waits until the address is free.
func (l *listener) close() {
	for _, c := range l.sockets {
		_ = c.Close() // nothing is to be written
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range l.servers {
		_ = d.ShutdownContext(ctx) // it had ended
	}
}

// freebind allows an address that no link has yet. UDP needs no SO_REUSEADDR:
// with it two servers could share the address unawares, and each would get some
// of the queries.
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

// seat is whom something is counted for: a port of a network's bridge, or one
// address. All addresses that no port is known of are one. What comes by UDP is
// counted apart, since it may be somebody else's.
type seat struct {
	network string
	udp     bool
	port    int
	addr    netip.Addr
}

func (s *Server) seat(network string, from netip.Addr, udp bool) seat {
	if s.Ports == nil || s.forward.mine(from) { // a process of the host
		return seat{network: network, udp: udp, addr: from}
	}
	return seat{network: network, udp: udp, port: s.Ports(network, from)}
}

// limit lets a listener have some connections at once; more wait to be accepted.
// Of one container it has fewer, so that nobody takes all of them.
func limit(l net.Listener, of func(netip.Addr) seat) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, maxConns), of: of, open: make(map[seat]int)}
}

type limited struct {
	net.Listener
	slots chan struct{}
	of    func(netip.Addr) seat

	mu   sync.Mutex
	open map[seat]int
}

// Accept waits for a slot after the connection, since the listener's Close
// cannot end the wait for a slot before it.
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

// may says whether a container may have so many connections: a part of what is free,
// as of queries, so that a dozen that want all leave some to others.
func (l *limited) may(n int) bool {
	free := cap(l.slots) - len(l.slots)
	return n == 1 || n <= free/partOfFree
}

// slot waits for one: after the time that a connection may ask, and say nothing, all
// the others have ended.
func (l *limited) slot() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	case <-time.After(life + idle):
		return false
	}
}

// count adds to the connections of a container, and returns how many there are.
func (l *limited) count(from seat, n int) int {
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

// SetReadDeadline bounds all reads together: a client that asks a little all the time
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
