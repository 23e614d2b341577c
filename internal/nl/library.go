// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// library has the methods of netlink.Handle that we and our tests use (methods.go). It opens the library's socket
// at the first of them, because a plain ADD needs only ours (see socket).
type library struct {
	raw *socket
	ns  *netns.NS // nil for the namespace in which raw was opened, by Host

	mu     sync.Mutex
	handle *handle
}

func (l *library) open() (*handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle != nil {
		return l.handle, nil
	}
	h, err := l.dial()
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	l.handle = h
	return h, nil
}

// dial opens the library's socket in the namespace of ours.
func (l *library) dial() (h *handle, err error) {
	ns := l.ns
	if ns == nil {
		if ns, err = l.elsewhere(); err != nil {
			return nil, err
		}
		if ns == nil {
			return netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		defer ns.Close() //nolint:errcheck // read only
	}
	err = ns.Visit(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil && h != nil {
		h.Close()
	}
	return h, err
}

// elsewhere returns the namespace of our socket, or nil if the calling thread is in it. A thread that
// was in another namespace may have called Host. If the kernel does not tell (Linux before 4.10, or
// without CAP_NET_ADMIN, which a thread needs to be elsewhere), elsewhere returns nil.
func (l *library) elsewhere() (*netns.NS, error) {
	fd, err := unix.IoctlRetInt(int(l.raw.Socket), unix.SIOCGSKNS)
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	path := "/proc/thread-self/fd/" + strconv.Itoa(fd)
	if own, err := netns.IsOwn(path); own || err != nil {
		return nil, err
	}
	return netns.Open(path)
}

func (l *library) closeLibrary() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle != nil {
		l.handle.Close()
		l.handle = nil
	}
}

type handle = netlink.Handle

// do calls fn with the library's handle.
func (l *library) do(fn func(*handle) error) error {
	h, err := l.open()
	if err != nil {
		return err
	}
	return fn(h)
}

func call[A any](l *library, method func(*handle, A) error, a A) error {
	return l.do(func(h *handle) error { return method(h, a) })
}

func call2[A, B any](l *library, method func(*handle, A, B) error, a A, b B) error {
	return l.do(func(h *handle) error { return method(h, a, b) })
}

// ask calls a method that reads something. If the kernel interrupted the dump, ask repeats it.
func ask[T any](l *library, read func(*handle) (T, error)) (out T, err error) {
	h, err := l.open()
	if err != nil {
		return out, err
	}
	return Retry(func() (T, error) { return read(h) })
}
