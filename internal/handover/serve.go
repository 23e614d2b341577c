// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// These are the server's limits.
const (
	maxRequest  = 208 << 10        // the kernel's default for the packets of a socket
	requestTime = 10 * time.Second // until a plugin process has read its standard input
	deadTime    = 30 * time.Second // how long the call of a dead plugin process may undo its work
	endTime     = 30 * time.Second // how long calls may run on after the server was told to end
)

// Runner runs calls.
type Runner interface {
	// Runs reports whether Run can run the call.
	Runs(*Call) bool

	// Run runs a call and returns its exit status. It may send the status and the output itself
	// (Call.Answer). If the plugin process ends, ctx ends.
	Run(ctx context.Context, c *Call) (status int)
}

// server is a process that runs calls.
type server struct {
	runner Runner
	log    func(string, ...any)
	own    []trait
	end    func() // ends the server
	calls  sync.WaitGroup
	ran    atomic.Int64
	pool   sync.Pool // *[maxRequest]byte

	mu       sync.Mutex
	running  map[*Call]string // the container of each call
	refusals map[string]bool  // reasons that are in the log
}

// Serve runs calls until ctx ends or the program is replaced. It must be called on the first thread of
// the process: another thread that has entered a container's namespace can be ended, the first cannot.
func Serve(ctx context.Context, runner Runner, log func(string, ...any)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != os.Getpid() {
		return errors.New("the server is not on the first thread of its process: start it again")
	}
	own, _, err := traitsOf("self")
	if err != nil {
		return err
	}
	l, unlink, err := listen(Path)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s := &server{runner: runner, log: log, own: own, end: end, running: map[*Call]string{}, refusals: map[string]bool{}}
	s.pool.New = func() any { return new([maxRequest]byte) }
	defer context.AfterFunc(ctx, func() {
		unlink()
		l.Close() //nolint:errcheck // the process ends
	})()
	log("running the calls of %s, listening on %s", filepath.Base(os.Args[0]), Path)
	err = s.accept(resident.PatientListener(l, log))
	if ctx.Err() != nil {
		err = nil
	}
	end()
	s.drain()
	log("ending: ran %d calls", s.ran.Load())
	return err
}

// listen listens on a new socket at path. A former server keeps its socket, without a name, until it
// ends. unlink removes the name if it is still that of the new socket.
func listen(path string) (l *net.UnixListener, unlink func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	temp := path + "." + strconv.Itoa(os.Getpid())
	os.Remove(temp)
	if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: temp, Net: "unixpacket"}); err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	var own unix.Stat_t
	err = errors.Join(os.Chmod(temp, 0o600), unix.Stat(temp, &own), os.Rename(temp, path))
	if err != nil {
		os.Remove(temp)
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, func() {
		var now unix.Stat_t
		if unix.Lstat(path, &now) == nil && now.Dev == own.Dev && now.Ino == own.Ino {
			os.Remove(path)
		}
	}, nil
}

func (s *server) accept(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		s.calls.Go(func() {
			defer conn.Close() //nolint:errcheck // what was sent has arrived
			s.serve(conn.(*net.UnixConn))
		})
	}
}

// drain waits for the calls that run.
func (s *server) drain() {
	done := make(chan struct{})
	go func() {
		s.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(endTime):
	}
}

// serve runs one call. If it returns early, the connection is closed, and the plugin process runs the
// call itself.
func (s *server) serve(conn *net.UnixConn) {
	defer func() {
		if v := recover(); v != nil {
			s.log("a call panicked: %v: %s", v, debug.Stack()) // the plugin process finds out that the call is lost
		}
	}()
	c := &Call{conn: conn, Stderr: Stderr{log: s.log}, ended: make(chan struct{})}
	if err := s.check(c); err != nil {
		s.refuse(err)
		return
	}
	if err := s.receive(c); err != nil {
		s.refuse(err)
		return
	}
	if !s.runner.Runs(c) {
		return
	}
	defer s.begin(c)()
	// The connection is still open if this succeeds, so check has examined the right process.
	if _, err := conn.Write([]byte{accepted}); err != nil {
		return
	}
	s.run(c)
}

// run runs a call that the server has taken.
func (s *server) run(c *Call) {
	s.ran.Add(1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		c.watch()
		cancel()
	}()
	s.await(ctx, c)
	if status := s.runner.Run(ctx, c); !c.settled.Load() {
		c.Answer(status, nil) //nolint:errcheck // without output, an answer changes nothing
	}
}

// check returns an error if the plugin process differs from this process.
func (s *server) check(c *Call) error {
	pid, err := peerOf(c.conn)
	if err != nil {
		return err
	}
	traits, parent, err := traitsOf(pid)
	if err != nil {
		return err
	}
	c.Parent = parent
	return compare(s.own, traits)
}

// receive reads the request.
func (s *server) receive(c *Call) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	buffer := s.pool.Get().(*[maxRequest]byte)
	defer s.pool.Put(buffer)
	n, err := c.conn.Read(buffer[:])
	if err != nil {
		return err
	}
	if err := c.parse(buffer[:n]); err != nil {
		return err
	}
	return c.conn.SetReadDeadline(time.Time{})
}

// begin lists a call as running until end is called.
func (s *server) begin(c *Call) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[c] = c.Getenv("CNI_CONTAINERID")
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, c)
	}
}

// await waits for earlier calls of the same container whose plugin processes are dead. A runtime that has
// killed an ADD calls DEL at once, while the ADD may still undo its work. The server has accepted the DEL by
// then, so its plugin process waits, too. The undo may execute a program that executes a plugin: such a call
// must not wait for the undo.
func (s *server) await(ctx context.Context, c *Call) {
	if !s.haunted(c) || descends(c.Parent) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadTime)
	defer cancel()
	for s.haunted(c) && clock.Sleep(ctx, time.Millisecond) {
	}
}

// haunted reports whether another call of the same container runs whose plugin process is dead.
func (s *server) haunted(c *Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	container := s.running[c]
	for other, of := range s.running {
		if other != c && of == container && container != "" && !other.settled.Load() && other.dead() {
			return true
		}
	}
	return false
}

// refuse logs each reason once. It ends a server whose program was replaced, because it would refuse
// every call from now on.
func (s *server) refuse(why error) {
	if s.replaced() {
		s.log("the program was replaced: ending")
		s.end()
		return
	}
	s.mu.Lock()
	known := s.refusals[why.Error()] || len(s.refusals) == maxReasons
	if !known {
		s.refusals[why.Error()] = true
	}
	s.mu.Unlock()
	if !known {
		s.log("refused a call, so its plugin process does the work itself: %v", why)
	}
}

// maxReasons limits the memory for reasons.
const maxReasons = 100

// replaced reports whether the path of this program leads to another file.
func (s *server) replaced() bool {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return false
	}
	var st, own unix.Stat_t
	if unix.Stat("/proc/self/exe", &own) != nil {
		return false
	}
	return unix.Stat(path, &st) != nil || st.Dev != own.Dev || st.Ino != own.Ino
}
