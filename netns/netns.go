// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netns opens, makes and names network namespaces.
//
// A namespace is used through a socket opened in it (internal/nl). Only what the kernel
// ties to a thread, sysctls and the making of a namespace, goes through Do or a Worker: a
// goroutine locked to a thread that ends with it. Only Visit, for the making of a socket,
// switches a thread back.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotNS is wrapped by Open when the path is no namespace.
var ErrNotNS = errors.New("not a network namespace")

// NS is an open network namespace.
type NS struct {
	path string
	fd   int // not an os.File: the poller, which refuses namespaces, would start for it
}

// Open opens the namespace bound at path, such as /run/netns/x or /proc/42/ns/net. For a
// missing path errors.Is(err, fs.ErrNotExist) is true.
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

// Is reports whether path is a namespace, without opening it.
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

// Gone reports whether err means that a namespace does not exist any more: its
// path is missing or no longer a namespace (a leftover bind point).
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotNS) }

// Path returns Open's argument.
func (n *NS) Path() string { return n.path }

// Fd returns the descriptor of the namespace, valid until Close.
func (n *NS) Fd() int { return n.fd }

// Close closes the descriptor of the namespace, once.
func (n *NS) Close() error {
	fd := n.fd
	n.fd = -1 // the number may be another file's soon
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close namespace %s: %w", n.path, err)
	}
	return nil
}

// ID identifies a namespace on this node as long as it exists.
type ID struct{ Dev, Ino uint64 }

// ID returns the identity of n.
func (n *NS) ID() (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.Fd(), &st); err != nil {
		return ID{}, fmt.Errorf("stat namespace %s: %w", n.path, err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Cookie is a number that no other namespace gets until the next boot (SO_NETNS_COOKIE,
// Linux >= 5.14), while the kernel reuses inode numbers.
func (n *NS) Cookie() (cookie uint64, err error) {
	err = n.Visit(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was sent
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cookie of namespace %s: %w", n.path, err)
	}
	return cookie, nil
}

// IsCurrent reports whether n is the namespace this process started in.
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

// IsOwn reports whether the namespace bound at path is the calling thread's. The two are
// compared without opening them, a sixth of the time of Open and IsCurrent. For what is no
// namespace the error is Open's.
func IsOwn(path string) (bool, error) {
	var at, own unix.Stat_t
	if unix.Stat(path, &at) == nil && unix.Stat(current, &own) == nil && at.Dev == own.Dev { // both nsfs
		return at.Ino == own.Ino, nil
	}
	n, err := Open(path)
	if err != nil {
		return false, err
	}
	defer n.Close() //nolint:errcheck // read only
	return n.IsCurrent()
}

// Do runs fn on a thread inside n and ends that thread.
func (n *NS) Do(fn func() error) error {
	w := n.NewWorker()
	defer w.Close()
	return w.Do(fn)
}

// Visit runs fn, which must not panic, on a thread that enters n and returns: cheaper than
// Do, for one short call. A thread that cannot return ends.
func (n *NS) Visit(fn func() error) error {
	own, err := Current()
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // read only
	return visit(n.Fd(), own.Fd(), fn)
}

func visit(there, back int, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- thereAndBack(there, back, fn) }()
	return <-done
}

// thereAndBack leaves its goroutine locked to a thread that cannot return; the thread ends
// with the goroutine.
func thereAndBack(there, back int, fn func() error) error {
	runtime.LockOSThread()
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err := fn()
	if lost := unix.Setns(back, unix.CLONE_NEWNET); lost != nil {
		return errors.Join(err, fmt.Errorf("leave namespace: %w", lost))
	}
	runtime.UnlockOSThread()
	return err
}

// Worker is one thread inside a namespace that runs functions in turn.
type Worker struct {
	calls chan call
	once  sync.Once
}

type call struct {
	fn   func() error
	done chan error
}

// NewWorker starts a thread inside n. It is never the first of the process: then other
// programs would see the whole process in n (/proc/PID/ns).
func (n *NS) NewWorker() *Worker {
	w := &Worker{calls: make(chan call)}
	GoOnThread(func() { w.run(n.Fd(), n.path) })
	return w
}

// GoOnThread starts fn on a thread of its own, which ends with it and may be left in any
// namespace. It is not the process's first one, which represents the whole process in
// /proc/PID/ns and /proc/net.
func GoOnThread(fn func()) { go notFirst(fn) }

func notFirst(fn func()) {
	runtime.LockOSThread() // never unlocked where fn runs
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
	<-taken // until then this goroutine has the first thread
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
		c.done <- c.fn()
	}
}

// Do runs fn on the worker's thread and returns its error, or the error of
// entering the namespace.
func (w *Worker) Do(fn func() error) error {
	c := call{fn, make(chan error, 1)}
	w.calls <- c
	return <-c.done
}

// Close ends the thread.
func (w *Worker) Close() { w.once.Do(func() { close(w.calls) }) }

// openFile is os.Open without registering the file with the poller, which refuses such
// files: five system calls less. It waits for nothing: the path may be a FIFO or a device.
func openFile(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
