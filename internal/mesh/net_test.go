// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"
)

// listen opens a TCP listener inside a namespace.
func (s *space) listen(t testing.TB, addr string) (l net.Listener) {
	t.Helper()
	must(t, s.conn.Do(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	}))
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
	return l
}

// dial connects from inside a namespace. The library's dialer changes threads, so dial creates
// the socket itself.
func (s *space) dial(addr string, within time.Duration) (c net.Conn, err error) {
	err = s.conn.Do(func() (err error) {
		d := net.Dialer{Timeout: within, FallbackDelay: -1}
		c, err = d.Dial("tcp", addr)
		return err
	})
	return c, err
}

// ask connects from one namespace to an address of another, which replies with the address
// it sees. "" means that no reply came.
func ask(t testing.TB, from, to *space, addr string) string {
	t.Helper()
	l := to.listen(t, net.JoinHostPort(addr, "0"))
	defer l.Close() //nolint:errcheck // a test
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintln(c, host) //nolint:errcheck // ask sees an empty reply
			c.Close()             //nolint:errcheck // a test
		}
	}()
	c, err := from.dial(l.Addr().String(), patience)
	if err != nil {
		t.Logf("dial %s: %v", l.Addr(), err)
		return ""
	}
	defer c.Close()                         //nolint:errcheck // a test
	c.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // a test
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Logf("read from %s: %v", l.Addr(), err)
		return ""
	}
	return line[:len(line)-1]
}

// stream is a TCP connection that stays open.
type stream struct {
	near net.Conn
	far  net.Conn
}

func connect(t testing.TB, from, to *space, addr string) *stream {
	t.Helper()
	l := to.listen(t, net.JoinHostPort(addr, "0"))
	near, err := from.dial(l.Addr().String(), patience)
	must(t, err)
	far, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { near.Close(); far.Close() }) //nolint:errcheck // a test
	return &stream{near, far}
}

// echo sends a text there and back.
func (s *stream) echo(text string) error {
	for _, pair := range [][2]net.Conn{{s.near, s.far}, {s.far, s.near}} {
		from, to := pair[0], pair[1]
		deadline := time.Now().Add(patience)
		if err := errors.Join(from.SetDeadline(deadline), to.SetDeadline(deadline)); err != nil {
			return err
		}
		if _, err := fmt.Fprint(from, text); err != nil {
			return err
		}
		b := make([]byte, len(text))
		for n := 0; n < len(b); {
			m, err := to.Read(b[n:])
			if err != nil {
				return err
			}
			n += m
		}
		if string(b) != text {
			return fmt.Errorf("got %q, want %q", b, text)
		}
	}
	return nil
}
