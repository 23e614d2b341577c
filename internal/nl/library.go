// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// library has the methods of netlink.Handle that we use (methods.go). It opens the library's socket
// at the first of them, because a plain ADD needs only ours (see socket).
type library struct {
	ns *netns.NS // nil for the namespace of the process

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

func (l *library) dial() (h *handle, err error) {
	if l.ns == nil {
		return netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	err = l.ns.Visit(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil && h != nil {
		h.Close()
	}
	return h, err
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
