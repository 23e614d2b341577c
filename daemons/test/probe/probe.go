// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe has a server and a client with which tests prove that traffic passes. Over TCP and
// UDP, the server returns to each client the client's address as the server sees it, or the name of its host. Tests use the
// package in their own process, in a namespace that they entered, and as a static program in
// containers.
package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Timeout is how long a client waits for an answer.
const Timeout = 3 * time.Second

// Server listens on one port over TCP and UDP until it is closed.
type Server struct {
	tcp net.Listener
	udp net.PacketConn
}

// Serve starts a server on addr ("host:port" as net.Listen takes it). Its sockets stay in the
// network namespace of the calling thread.
func Serve(addr string) (*Server, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), tcp.Close())
	}
	_ = enlarge(udp) // without the privilege, the buffer keeps its usual size
	s := &Server{tcp, udp}
	go s.serveTCP()
	go s.serveUDP()
	return s, nil
}

// Close ends the server.
func (s *Server) Close() error { return errors.Join(s.tcp.Close(), s.udp.Close()) }

func (s *Server) serveTCP() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		go converse(c)
	}
}

// converse answers one request line: "who", "name", or "send N" for N bytes.
func converse(c net.Conn) {
	defer c.Close()
	ask, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	var n int64
	if _, err := fmt.Sscanf(ask, "send %d", &n); err == nil {
		io.CopyN(c, zeros{}, n)
		return
	}
	fmt.Fprintln(c, answer(ask, c.RemoteAddr()))
}

// answer answers a request: "name" with the name of the host, which is that of the pod in a container, and any other one with
// the client's address.
func answer(ask string, from net.Addr) string {
	if strings.TrimSpace(ask) != "name" {
		return seen(from)
	}
	name, _ := os.Hostname()
	return name
}

func (s *Server) serveUDP() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		s.udp.WriteTo([]byte(answer(string(buf[:n]), from)+"\n"), from)
	}
}

// seen formats an address. An IPv4-mapped IPv6 address, as a dual-stack socket returns it, becomes
// an IPv4 address.
func seen(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

// Who asks the server at addr over network ("tcp" or "udp") which client address it sees.
func Who(network, addr string) (netip.AddrPort, error) {
	answer, err := request(network, addr, "who")
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(answer)
}

// Name asks the server at addr over network for the name of its host.
func Name(network, addr string) (string, error) { return request(network, addr, "name") }

// request sends a line and returns the answer. It repeats a UDP request, because a datagram may get lost during neighbour discovery.
func request(network, addr, line string) (string, error) {
	c, err := net.DialTimeout(network, addr, Timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	answer, err := exchange(c, network, line)
	if err != nil {
		return "", fmt.Errorf("ask %s %s: %w", network, addr, err)
	}
	return answer, nil
}

func exchange(c net.Conn, network, line string) (answer string, err error) {
	limit := Timeout / 3
	if network == "tcp" { // nothing is lost: the server may be slow
		limit = 10 * Timeout
	}
	for range 3 {
		if _, err = io.WriteString(c, line+"\n"); err != nil {
			break
		}
		c.SetReadDeadline(time.Now().Add(limit))
		if answer, err = bufio.NewReader(c).ReadString('\n'); err == nil {
			return strings.TrimSpace(answer), nil
		}
		if network == "tcp" {
			break
		}
	}
	return "", err
}

// Fetch reads n bytes from the TCP server at addr and returns how long that took.
func Fetch(addr string, n int64) (time.Duration, error) {
	start := time.Now()
	c, err := net.DialTimeout("tcp", addr, Timeout)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "send %d\n", n); err != nil {
		return 0, err
	}
	got, err := io.Copy(io.Discard, c)
	if err == nil && got != n {
		err = fmt.Errorf("got %d of %d bytes", got, n)
	}
	return time.Since(start), err
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
