// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

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
	quiet = 10 * time.Minute       // between two log lines
)

// PatientListener returns l with another Accept. If the process or the node has no file
// descriptor or memory for a new connection, this Accept waits a little and tries again; clients
// wait too. It logs the error once, and again if the error still occurs or returns after ten
// minutes. Accept returns other errors to the caller. Close ends the wait.
func PatientListener(l net.Listener, log func(string, ...any)) net.Listener {
	return &patient{Listener: l, log: log, closed: make(chan struct{})}
}

type patient struct {
	net.Listener
	log    func(string, ...any)
	logged time.Time // zero means never
	once   sync.Once
	closed chan struct{}
}

func (p *patient) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err == nil || !passes(err) {
			return c, err
		}
		p.report(err)
		select {
		case <-p.closed:
			return nil, net.ErrClosed
		case <-time.After(pause):
		}
	}
}

// report logs an error. report needs no lock, because only one goroutine accepts.
func (p *patient) report(err error) {
	if p.logged.IsZero() || time.Since(p.logged) > quiet {
		p.logged = time.Now()
		p.log("connections wait for file descriptors or memory: %v", err)
	}
}

// passes reports whether an error is temporary and not the fault of the listener.
func passes(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && slices.Contains([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED}, errno)
}

func (p *patient) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}
