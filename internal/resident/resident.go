// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package resident helps processes that run for a long time. If the node briefly lacks file
// descriptors or memory, such a process neither exits nor uses all CPU time. It logs a repeated
// failure only once.
package resident

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
)

const (
	pause = 100 * time.Millisecond // between two tries
	quiet = 10 * time.Minute       // between two log lines
)

// PatientListener returns a listener that accepts from l. If the process or the node has no file
// descriptor or memory for a new connection, Accept waits a little and tries again; clients
// wait too. It logs such an error at most once in ten minutes, and returns other errors to the
// caller. Close ends the wait.
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

// Signal wakes the reader of a channel with room for one signal.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the loop has not yet handled an earlier signal
	}
}

const (
	settleTime = 20 * time.Millisecond // waits this long for further changes, to handle them together
	restFactor = 4                     // rests this many times as long as the check took
	settleMost = 5 * time.Second       // longest rest; needed if a slow server, and not the process, took the time
)

// Settle returns how long to collect changes before the next check. After a long check the time
// is longer, so that checks never use a whole processor. The time is limited, because the loop
// notices nothing while it waits.
func Settle(took time.Duration) time.Duration {
	return min(max(settleTime, restFactor*took), settleMost)
}

// Pause returns how long to collect changes after the first one. took is the length of the last
// check. Settle's time counts from the end of that check, so a change that comes after a rest is
// handled soon, however long a check takes.
func Pause(took time.Duration, ended time.Time) time.Duration {
	return max(settleTime, Settle(took)-time.Since(ended))
}

// RetryFirst and RetryMost are the first and the longest pause after a failure. The pauses grow,
// because otherwise hundreds of nodes would ask at once when a server is back.
const (
	RetryFirst = time.Second
	RetryMost  = 15 * time.Second
)

// Keep works like Repeat for a call that returns only when it fails. When a call has lasted for a
// while, failed gets nil.
func Keep(ctx context.Context, failed func(error), fn func() error) {
	Repeat(ctx, failed, func() error {
		ended, noted := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(noted)
			select {
			case <-ended:
			case <-time.After(RetryMost):
				failed(nil)
			}
		}()
		defer func() { close(ended); <-noted }()
		return fn()
	})
}

// Repeat calls fn again and again until ctx ends, with a pause after each call.
func Repeat(ctx context.Context, failed func(error), fn func() error) {
	for pause := RetryFirst; ctx.Err() == nil; pause = min(2*pause, RetryMost) {
		began := time.Now()
		err := fn()
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		if err == nil || time.Since(began) > RetryMost {
			pause = RetryFirst // the call worked for a while before it failed
		}
		clock.Sleep(ctx, Jitter(pause))
	}
}

// Jitter returns a random time of about d. So nodes do not act at the same moment.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// TrimMemory gives memory back that only the start of a process needed. This is free memory of
// the heap, and pages of the program, because initialisation touches nearly all of them. If the
// process uses a page again, the kernel maps it from its cache.
func TrimMemory(proc string) error {
	debug.FreeOSMemory()
	program, err := os.Readlink(proc + "/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open(proc + "/self/smaps")
	if err != nil {
		return err
	}
	defer maps.Close() //nolint:errcheck // read only
	var m mapping
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if next, ok := parseMapping(lines.Text()); ok {
			m = next
		}
		if m.file != program || m.writable || !unchanged(lines.Text()) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return errno
		}
	}
	return nil
}

// mapping is one memory mapping of a process (proc_pid_maps(5)).
type mapping struct {
	from, to uintptr
	writable bool
	file     string
}

func parseMapping(line string) (m mapping, ok bool) {
	var may, offset, device, inode string
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &m.from, &m.to, &may, &offset, &device, &inode, &m.file)
	m.writable = strings.Contains(may, "w")
	return m, n >= 6 //nolint:mnd // all but the file
}

// unchanged reports whether a line of smaps says that the process changed no page of a mapping. A
// loader's relocations, for example, change pages.
func unchanged(line string) bool {
	f := strings.Fields(line)
	return len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0"
}

// Failure stores the last failure of one subject. Its zero value means that there is no
// failure. Failure has no lock; callers that share a Failure must hold the lock of its
// subject.
type Failure struct {
	text string
}

// Changed stores err, or no failure if err is nil. Changed reports whether the text of err
// differs from the last failure's text. For nil, it reports whether there was a failure. After
// nil, every failure counts as changed. Readers of the log see only the text, so Changed compares
// texts.
func (f *Failure) Changed(err error) bool {
	was := f.text
	f.text = ""
	if err != nil {
		f.text = err.Error()
	}
	return f.text != was
}

// String returns the text of the failure, or "" if there is none.
func (f Failure) String() string { return f.text }

// Problems holds the current errors, by subject. It logs an error when the error appears, changes
// or ends, but not each time the agent finds it again.
type Problems struct {
	Log func(format string, args ...any)

	mu  sync.Mutex
	now map[string]problem
	n   int // number of changes
}

// problem is the error of one subject.
type problem struct {
	Failure
	kind string // of the subject; a subject without a kind is one itself
}

// Set sets the error of a subject. A nil error means that the subject has none.
func (s *Problems) Set(subject string, err error) { s.set(subject, subject, err) }

func (s *Problems) set(kind, subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.now[subject]
	if last.kind = kind; !last.Changed(err) {
		return
	}
	s.n++
	if err == nil {
		delete(s.now, subject)
		s.Log("%s: resolved", subject)
		return
	}
	if s.now == nil {
		s.now = map[string]problem{}
	}
	s.now[subject] = last
	s.Log("%s: %v", subject, err)
}

// SetAll sets the errors of all subjects of one kind.
func (s *Problems) SetAll(kind string, wrong map[string]error) {
	for name, err := range wrong {
		s.set(kind, kind+" "+name, err)
	}
	for _, subject := range s.subjects() {
		if name, ok := strings.CutPrefix(subject, kind+" "); ok && wrong[name] == nil {
			s.Set(subject, nil)
		}
	}
}

func (s *Problems) subjects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.now))
}

// Changes returns how often the errors have changed.
func (s *Problems) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Count returns the number of current errors, by the kind of their subjects.
func (s *Problems) Count() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, p := range s.now {
		out[p.kind]++
	}
	return out
}

// All returns the current errors.
func (s *Problems) All() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subject := range slices.Sorted(maps.Keys(s.now)) {
		out = append(out, subject+": "+s.now[subject].String())
	}
	return out
}
