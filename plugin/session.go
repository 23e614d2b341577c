// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/paths"
)

// Session is the state that all calls of one outermost request share. Session knows where
// state is stored and how delegates are called. Session also holds values such as sockets and
// the firewall transaction, which is committed once, at the end.
type Session struct {
	Paths   paths.Paths
	Plugins []*Plugin // plugins that may run in process
	Stderr  io.Writer

	// Dry, if set, makes an ADD write down its changes instead of making them (`patchbay
	// explain`).
	Dry func(line string)

	// Self is the path of a program whose main function calls Main or MainOf, usually this
	// program. Self is empty if the plugins run inside another project's program.
	Self string

	// Fault, if set, is called before every change. Only tests set it.
	Fault func(step string) error

	foreignNetNS string // a path that is known not to be our own namespace

	values  []sessionValue
	flush   []func(context.Context) error
	discard []func()
	close   []func()
	done    []func() func(context.Context)
}

type sessionValue struct{ key, value any }

// NewSession returns a session with the paths of this node.
func NewSession(plugins []*Plugin) *Session {
	return &Session{Paths: paths.Default(), Plugins: plugins, Stderr: os.Stderr}
}

// Fork returns a new session of the same program on the same node.
func (s *Session) Fork() *Session {
	return &Session{Paths: s.Paths, Plugins: s.Plugins, Stderr: s.Stderr, Self: s.Self, Fault: s.Fault}
}

// Value returns the session's value for key. Value makes the value at the first call.
func (s *Session) Value(key any, make func() any) any {
	for _, v := range s.values {
		if v.key == key {
			return v.value
		}
	}
	v := make()
	s.values = append(s.values, sessionValue{key, v})
	return v
}

// isOwnNetNS reports whether path is the namespace of this process.
func (s *Session) isOwnNetNS(path string) (same bool, err error) {
	if path == s.foreignNetNS {
		return false, nil
	}
	if same, err = netns.IsOwn(path); err == nil && !same {
		s.foreignNetNS = path
	}
	return same, err
}

type listedKey struct{}

// listed returns the time for Request.Listed. Plugins that are called one after the other
// share the time of the first one.
func (s *Session) listed(config []byte) time.Time {
	if t, ok := clock.Listed(config); ok {
		return t
	}
	return s.Value(listedKey{}, func() any { return time.Now() }).(time.Time)
}

// OnFlush registers a function that does queued work, once, at the end of the calls.
func (s *Session) OnFlush(fn func(context.Context) error) { s.flush = append(s.flush, fn) }

// OnDiscard registers a function that discards queued work if a request fails.
func (s *Session) OnDiscard(fn func()) { s.discard = append(s.discard, fn) }

// OnClose registers a function to call at the end of the session.
func (s *Session) OnClose(fn func()) { s.close = append(s.close, fn) }

// OnDone registers a look at the node for a program that has ended its call well: the result
// is out and the session closed. The runtime still waits, so the look must be short; what it
// returns, if it finds work, is given a second. A kill must harm neither.
func (s *Session) OnDone(look func() (work func(context.Context))) { s.done = append(s.done, look) }

// doneTime limits work after a call.
const doneTime = time.Second

// afterwards does what OnDone registered. Whatever happens in it, the call is done.
func (s *Session) afterwards() {
	defer s.calm()
	for _, look := range s.done {
		if work := look(); work != nil {
			s.within(doneTime, work)
		}
	}
}

// within waits for work no longer than a time: the end of the process ends it.
func (s *Session) within(limit time.Duration, work func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	go func() {
		defer cancel()
		defer s.calm()
		work(ctx)
	}()
	<-ctx.Done()
}

func (s *Session) calm() {
	if v := recover(); v != nil {
		fmt.Fprintf(s.Stderr, "patchbay: warning: after the call: %v\n", v) //nolint:errcheck // a log line
	}
}

// Flush does the queued work now.
func (s *Session) Flush(ctx context.Context) error {
	var errs []error
	for _, fn := range s.flush {
		errs = append(errs, fn(ctx))
	}
	return errors.Join(errs...)
}

// Close ends the session. Close closes everything that was opened in it, in reverse order.
func (s *Session) Close() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
	s.close = nil
}

func (s *Session) forget() {
	for _, fn := range s.discard {
		fn()
	}
}

func (s *Session) step(name string) error {
	if s.Fault == nil {
		return nil
	}
	return s.Fault(name)
}
