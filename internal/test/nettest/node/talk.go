// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"net/netip"
	"strings"
	"time"
)

// A request waits long, because test machines are slow. If the test expects no answer, it waits
// briefly.
const (
	patience   = 30 * time.Second
	impatience = 400 * time.Millisecond
)

// Serve answers every request to an address, TCP or UDP, with the name of the namespace and
// the source address of the request. It ends with the test.
func (s *Space) Serve(network, addr string) {
	s.t.Helper()
	must(s.t, s.conn.Do(func() error {
		if network == "udp" {
			conn, err := net.ListenPacket(network, addr)
			if err == nil {
				s.t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the end of the test
				go s.answerUDP(conn)
			}
			return err
		}
		l, err := net.Listen(network, addr)
		if err == nil {
			s.t.Cleanup(func() { l.Close() }) //nolint:errcheck // the end of the test
			go s.answerTCP(l)
		}
		return err
	}))
}

func (s *Space) answerTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(s.answer(conn.RemoteAddr()))) // the client may be gone
		_ = conn.Close()
	}
}

func (s *Space) answerUDP(conn net.PacketConn) {
	buf := make([]byte, 64)
	for {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo([]byte(s.answer(from)), from) // the client may be gone
	}
}

func (s *Space) answer(from net.Addr) string {
	return s.Name + " " + netip.MustParseAddrPort(from.String()).Addr().Unmap().String()
}

// Ask sends a request to a server and returns its answer, such as "container 198.51.100.2". If
// the request fails, it returns "refused", "timeout", or the error.
func (s *Space) Ask(network, addr string) string { return s.ask(network, "", addr, patience) }

// AskFrom works like Ask, from an address and port of the client.
func (s *Space) AskFrom(network, from, addr string) string {
	return s.ask(network, from, addr, patience)
}

// AskBriefly works like Ask, for a test that expects "timeout".
func (s *Space) AskBriefly(network, addr string) string {
	return s.ask(network, "", addr, impatience)
}

// Expect calls Ask and compares the answer.
func (s *Space) Expect(about, network, addr, want string) {
	s.t.Helper()
	ask := s.Ask
	if want == "timeout" {
		ask = s.AskBriefly
	}
	if got := ask(network, addr); got != want {
		s.t.Errorf("%s: %s asked %s %s and heard %q, want %q", about, s.Name, network, addr, got, want)
	}
}

func (s *Space) ask(network, from, addr string, wait time.Duration) (answer string) {
	err := s.conn.Do(func() error {
		d := net.Dialer{Timeout: wait}
		if from != "" {
			local := netip.MustParseAddrPort(from)
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
			if network == "udp" {
				d.LocalAddr = net.UDPAddrFromAddrPort(local)
			}
		}
		conn, err := d.Dial(network, addr)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // a request
		answer, err = question(conn, network, wait)
		return err
	})
	switch {
	case err == nil:
		return answer
	case strings.Contains(err.Error(), "refused"):
		return "refused"
	case strings.Contains(err.Error(), "timeout"):
		return "timeout"
	}
	return err.Error()
}

func question(conn net.Conn, network string, wait time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if network == "udp" {
		if _, err := conn.Write([]byte("who?")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 128)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}
