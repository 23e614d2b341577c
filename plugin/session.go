// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// Paths says where a node keeps what plugins know of it.
type Paths = paths.Paths

// Session is the state that all calls of one outermost request share. It knows where state is
// stored and how delegates are called. It also holds sockets, and the firewall transaction, which
// is committed once at the end.
type Session struct {
	Paths   Paths
	Plugins []*Plugin // plugins that may run in process
	Stderr  io.Writer

	// Dry, if set, gets each change of an ADD as a line; the ADD changes nothing (`patchbay explain`).
	Dry func(line string)

	// Mended, if set, lets a CHECK restore what is missing on the host (`patchbay repair`), and gets each
	// change as a line.
	Mended func(line string)

	// Self is the path of a program whose main function calls Main or MainOf. Usually it is this
	// program. If the plugins run inside another project's program, Self is empty.
	Self string

	// Env is the environment of the call, a list of K=V. Programs that a plugin executes get it. Nil
	// means the environment of this process.
	Env []string

	// Caller is the process that called, such as a container runtime. 0 means the parent of this
	// process.
	Caller int

	// Fault, if set, is called before every change. Only tests set it.
	Fault func(step string) error

	inRuntime bool // a runtime in this process called
	last      bool // this process ends after the call

	foreignNetNS string // a path that does not lead to our own namespace

	collecting time.Time // when the first plugin of a GC was called

	reserved []func(context.Context, *spec.Result) error

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
	return &Session{Paths: s.Paths, Plugins: s.Plugins, Stderr: s.Stderr, Self: s.Self, Env: s.Env, Caller: s.Caller, Fault: s.Fault, inRuntime: s.inRuntime}
}

// Environ returns the environment for a program that a plugin executes. The caller must not change
// it.
func (s *Session) Environ() []string {
	if s.Env == nil {
		return os.Environ()
	}
	return s.Env
}

// CallerPID returns the process that called.
func (s *Session) CallerPID() int {
	if s.Caller == 0 {
		return os.Getppid()
	}
	return s.Caller
}

// RuntimePID returns the process of the runtime that called: this one if the runtime uses Builtin, else the caller.
func (s *Session) RuntimePID() int {
	if s.Caller == 0 && s.inRuntime {
		return os.Getpid()
	}
	return s.CallerPID()
}

// Value returns the session's value for key. At the first call it uses make to make the value.
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

// OnReserved registers a function that gets the answer of the IPAM plugin, before the plugin that asked
// for addresses makes a link.
func (s *Session) OnReserved(fn func(context.Context, *spec.Result) error) {
	s.reserved = append(s.reserved, fn)
}

// Apart runs fn, which makes another attachment of the same container. What OnReserved has registered so far is not told of its
// addresses.
func (s *Session) Apart(fn func() error) error {
	outer := s.reserved
	s.reserved = nil
	defer func() { s.reserved = outer }()
	return fn()
}

// tellReserved calls what OnReserved registered.
func (s *Session) tellReserved(ctx context.Context, ipam *spec.Result) error {
	for _, fn := range s.reserved {
		if err := fn(ctx, ipam); err != nil {
			return err
		}
	}
	return nil
}

// OnFlush registers a function that does queued work. The function runs once, at the end of the
// calls.
func (s *Session) OnFlush(fn func(context.Context) error) { s.flush = append(s.flush, fn) }

// OnDiscard registers a function that discards queued work if a request fails.
func (s *Session) OnDiscard(fn func()) { s.discard = append(s.discard, fn) }

// OnClose registers a function to call at the end of the session.
func (s *Session) OnClose(fn func()) { s.close = append(s.close, fn) }

// OnDone registers look, which runs after a call that succeeded: the result is written and the
// session closed. The runtime still waits for the process to end, so look must be short. If look
// finds work, it returns a function, which gets a second. A kill at any moment must do no harm.
func (s *Session) OnDone(look func() (work func(context.Context))) { s.done = append(s.done, look) }

// doneTime limits the work after a call, because a healthy container waits for it. Later calls do the rest.
const doneTime = time.Second

// afterwards runs what OnDone registered. The call counts as done, even if this fails.
func (s *Session) afterwards() {
	defer s.calm()
	for _, look := range s.done {
		if work := look(); work != nil {
			s.within(doneTime, work)
		}
	}
}

// highestPriority is the nice value of what runs before other processes.
const highestPriority = -20

// hurry lets the calling goroutine run before other processes until its end. Otherwise these may leave the work after a call
// on a busy node too little of the processors to get through its look at the node's processes within doneTime, and each
// later call begins that anew. Without CAP_SYS_NICE it goes on as it was.
func (s *Session) hurry() {
	if !s.last {
		runtime.LockOSThread() // the thread ends with the goroutine
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, highestPriority)
		return
	}
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads { // a new one inherits from the one that makes it
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, highestPriority)
		}
	}
}

// within waits for work until the limit. After the limit, the end of the process ends the work.
func (s *Session) within(limit time.Duration, work func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	go func() {
		defer cancel()
		defer s.calm()
		s.hurry()
		work(ctx)
	}()
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		fmt.Fprintf(s.Stderr, "patchbay: warning: the sweep after the call did not end within %v; a later call sweeps again\n", limit) //nolint:errcheck // a log line
	}
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

// Close ends the session. It closes, in reverse order, everything that was opened in the session.
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
