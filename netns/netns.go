// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netns opens, makes and names network namespaces.
//
// Other packages work in a namespace through a socket that was opened in it (internal/nl). To set
// a sysctl or to make a namespace, a thread must be in the namespace. Do and Worker lock a
// goroutine to a thread for that; the thread ends with the goroutine. Only Visit and Socket move a
// thread into a namespace and back.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotNS means that a path is not a network namespace. Open wraps it.
var ErrNotNS = errors.New("not a network namespace")

// NS is an open network namespace.
type NS struct {
	path string
	fd   int // not an os.File, because that would start the poller, which refuses namespaces
}

// Open opens the namespace bound at path, such as /run/netns/x or /proc/42/ns/net. If the path
// is missing, the error wraps fs.ErrNotExist.
func Open(path string) (*NS, error) {
	fd, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to Statfs %q: %w", path, err)
	}
	n := &NS{path, fd}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to Statfs %q: %w", path, err), n.Close())
	}
	if !isNS(&st) {
		return nil, errors.Join(fmt.Errorf("unknown FS magic on %q: %x: %w", path, st.Type, ErrNotNS), n.Close())
	}
	return n, nil
}

// Is reports whether path is a network namespace. Is does not open the path.
func Is(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && isNS(&st)
}

func isNS(st *unix.Statfs_t) bool {
	return st.Type == unix.NSFS_MAGIC || st.Type == unix.PROC_SUPER_MAGIC
}

const current = "/proc/thread-self/ns/net"

// Current opens the namespace of the calling thread.
func Current() (*NS, error) { return Open(current) }

// Gone reports whether err means that a namespace no longer exists: its path is missing, or the
// path is an empty file that a mount left behind.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotNS) }

// Path returns the path that Open got.
func (n *NS) Path() string { return n.path }

// Fd returns the descriptor of the namespace. The descriptor is valid until Close.
func (n *NS) Fd() int { return n.fd }

// Close closes the descriptor. A second call does nothing.
func (n *NS) Close() error {
	fd := n.fd
	if fd < 0 {
		return nil
	}
	n.fd = -1 // the kernel may soon use the number for another file
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close namespace %s: %w", n.path, err)
	}
	return nil
}

// ID identifies a namespace on this node. After the namespace has ended, another one may get the
// same ID.
type ID struct{ Dev, Ino uint64 }

// ID returns the identity of n.
func (n *NS) ID() (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.Fd(), &st); err != nil {
		return ID{}, fmt.Errorf("stat namespace %s: %w", n.path, err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Cookie returns a number that no other namespace gets until the next boot (SO_NETNS_COOKIE,
// Linux >= 5.14). An inode number does not serve for this, because the kernel uses it again.
func (n *NS) Cookie() (cookie uint64, err error) {
	fd, err := n.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		defer unix.Close(fd) //nolint:errcheck // nothing was sent
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}
	if err != nil {
		return 0, fmt.Errorf("cookie of namespace %s: %w", n.path, err)
	}
	return cookie, nil
}

// IsCurrent reports whether n is the namespace in which this process started.
func (n *NS) IsCurrent() (bool, error) {
	own, err := Current()
	if err != nil {
		return false, err
	}
	defer own.Close() //nolint:errcheck // read only
	a, err := n.ID()
	if err != nil {
		return false, err
	}
	b, err := own.ID()
	return a == b, err
}

// IsOwn reports whether the namespace bound at path is the namespace of the calling thread. IsOwn
// opens neither of them. So it takes a sixth of the time that Open and IsCurrent take. If path is
// not a namespace, IsOwn returns the error of Open.
func IsOwn(path string) (bool, error) {
	var at, own unix.Stat_t
	if unix.Stat(path, &at) == nil && unix.Stat(current, &own) == nil && at.Dev == own.Dev { // same device means that both are in nsfs
		return at.Ino == own.Ino, nil
	}
	n, err := Open(path)
	if err != nil {
		return false, err
	}
	defer n.Close() //nolint:errcheck // read only
	return n.IsCurrent()
}

// Do runs fn on a thread inside n. The thread ends with fn.
func (n *NS) Do(fn func() error) error {
	w := n.NewWorker()
	defer w.Close()
	return w.Do(fn)
}

// Visit moves a thread into n, runs fn and moves the thread back. For one short call, Visit is
// cheaper than Do. If the thread cannot return to its own namespace, the thread ends, and Visit returns
// an error although fn was run. A panic of fn becomes an error.
func (n *NS) Visit(fn func() error) error { return n.visit(fn, (*NS).enter) }

func (n *NS) enter() error { return unix.Setns(n.Fd(), unix.CLONE_NEWNET) }

func (n *NS) visit(fn func() error, leave func(home *NS) error) error {
	done := make(chan error, 1)
	go func() { done <- n.visitOnThread(fn, leave) }()
	return <-done
}

// visitOnThread runs fn in n. leave moves the thread home. If it cannot, the goroutine stays locked to the
// thread, so that the thread ends with the goroutine. The caller of Visit may be on a thread that has
// another home.
func (n *NS) visitOnThread(fn func() error, leave func(home *NS) error) error {
	runtime.LockOSThread()
	home, err := Current()
	if err == nil {
		defer home.Close() //nolint:errcheck // read only
		err = n.enter()
	}
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = calm(fn)
	if lost := leave(home); lost != nil {
		return errors.Join(err, fmt.Errorf("leave namespace: %w", lost))
	}
	runtime.UnlockOSThread()
	return err
}

// Worker is a thread inside a namespace. Worker runs functions one after the other.
type Worker struct {
	calls chan call
	once  sync.Once
}

type call struct {
	fn   func() error
	done chan error
}

// NewWorker starts a thread inside n. NewWorker never uses the first thread of the process: other
// programs read /proc/PID/ns, which shows the first thread's namespace for the whole process.
func (n *NS) NewWorker() *Worker {
	w := &Worker{calls: make(chan call)}
	GoOnThread(func() { w.run(n.Fd(), n.path) })
	return w
}

// GoOnThread runs fn on a new thread, which ends with fn. So fn may leave the thread in any
// namespace. GoOnThread never uses the first thread of the process, because /proc/PID/ns and
// /proc/net show that thread's namespace for the whole process.
func GoOnThread(fn func()) { go notFirst(fn) }

func notFirst(fn func()) {
	runtime.LockOSThread() // stays locked on the thread that runs fn
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	taken := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(taken)
		fn()
	}()
	<-taken // this goroutine occupies the first thread until fn runs on another
	runtime.UnlockOSThread()
}

func (w *Worker) run(fd int, path string) {
	err := unix.Setns(fd, unix.CLONE_NEWNET)
	if err != nil {
		err = fmt.Errorf("enter namespace %s: %w", path, err)
	}
	for c := range w.calls {
		if err != nil {
			c.done <- err
			continue
		}
		c.done <- calm(c.fn)
	}
}

// calm turns a panic of fn into an error. fn runs on a goroutine of its own, where no caller could
// recover it, and so it would end a process that serves others, too.
func calm(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic in a namespace: %v: %s", v, debug.Stack())
		}
	}()
	return fn()
}

// Do runs fn on the worker's thread and returns its error. A panic of fn becomes an error. If the worker could not enter the
// namespace, Do returns that error.
func (w *Worker) Do(fn func() error) error {
	c := call{fn, make(chan error, 1)}
	w.calls <- c
	return <-c.done
}

// Close ends the thread.
func (w *Worker) Close() { w.once.Do(func() { close(w.calls) }) }

// openFile works like os.Open, but does not register the file with Go's poller, which refuses
// namespaces. Without the poller, openFile also saves five system calls. openFile never blocks,
// even if the path is a FIFO or a device.
func openFile(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
