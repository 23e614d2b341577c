// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package accept is for daemons, which must not end, or run in circles, because
// the node is short of something for a moment.
package accept

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pause = 100 * time.Millisecond // between two tries
	quiet = 10 * time.Minute       // between two lines about it
)

// Patient is l with an Accept that waits a little and goes on when the process or
// the node has no file descriptor or memory for another connection: those who
// call wait too. log hears of it once, and again when it lasts or comes back
// after ten minutes. Other errors come through, and Close ends the wait.
func Patient(l net.Listener, log func(string, ...any)) net.Listener {
	return &patient{Listener: l, log: log, closed: make(chan struct{})}
}

type patient struct {
	net.Listener
	log    func(string, ...any)
	said   time.Time // zero: never
	once   sync.Once
	closed chan struct{}
}

func (p *patient) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err == nil || !passes(err) {
			return c, err
		}
		p.say(err)
		select {
		case <-p.closed:
			return nil, net.ErrClosed
		case <-time.After(pause):
		}
	}
}

// say needs no lock: one goroutine accepts.
func (p *patient) say(err error) {
	if p.said.IsZero() || time.Since(p.said) > quiet {
		p.said = time.Now()
		p.log("connections wait until there is room: %v", err)
	}
}

// passes says whether an error is of the moment and not of the listener.
func passes(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && slices.Contains([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED}, errno)
}

func (p *patient) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}
