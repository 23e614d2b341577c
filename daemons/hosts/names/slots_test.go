// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// callers are connections that come one after the other, and then an error.
type callers struct {
	net.Listener
	from []net.Addr
}

func (c *callers) Accept() (net.Conn, error) {
	if len(c.from) == 0 {
		return nil, net.ErrClosed
	}
	at := c.from[0]
	c.from = c.from[1:]
	return &caller{at: at}, nil
}

type caller struct {
	net.Conn
	at   net.Addr
	read time.Time // its deadline
}

func (c *caller) RemoteAddr() net.Addr              { return c.at }
func (c *caller) Close() error                      { return nil }
func (c *caller) SetReadDeadline(t time.Time) error { c.read = t; return nil }

// A dozen containers take as many connections as they get. They leave some to the next one.
func TestConnectionsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a connection waits up to 15 s for its turn
		var all []net.Addr
		addr := func(i int) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(10, 40, 1, byte(i))} }
		for i := range 12 {
			for range maxConns {
				all = append(all, addr(i))
			}
		}
		l := limit(&callers{from: append(all, addr(99))}, func(from netip.Addr) client { return client{addr: from} })
		of := map[string]int{}
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			of[c.RemoteAddr().(*net.TCPAddr).IP.String()]++
		}
		if of["10.40.1.0"] != maxConns/(partOfFree+1) || of["10.40.1.11"] == 0 || of["10.40.1.99"] != 1 {
			t.Errorf("connections: %v", of)
		}
	})
}

// A connection ends even if it sends a little all the time.
func TestConnectionEnds(t *testing.T) {
	began := time.Now()
	l := limit(&callers{from: []net.Addr{&net.TCPAddr{IP: net.IPv4(10, 40, 1, 1)}}}, func(from netip.Addr) client { return client{addr: from} })
	c, err := l.Accept()
	must(t, err)
	must(t, c.SetReadDeadline(began.Add(time.Hour)))
	if got := c.(*slot).Conn.(*caller).read; got.After(time.Now().Add(life)) || got.Before(began.Add(life)) {
		t.Errorf("it may be read for %v", got.Sub(began))
	}
}
