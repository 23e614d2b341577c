// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket opens a socket in n (socket(2)). It stays in n, so bind(2) and all later calls may come
// from any thread. The descriptor is closed on exec.
func (n *NS) Socket(family, kind, protocol int) (fd int, err error) {
	if fd, ok := n.quickSocket(family, kind, protocol); ok {
		return fd, nil
	}
	err = n.Visit(func() error { // finds the reason, if there is one
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// quickSocket takes a tenth of the time of Visit in a new process, where the first
// runtime.LockOSThread starts another thread.
func (n *NS) quickSocket(family, kind, protocol int) (fd int, ok bool) {
	own, err := Current()
	if err != nil {
		return -1, false
	}
	defer own.Close() //nolint:errcheck // read only
	done := make(chan int, 1)
	go func() {
		done <- socketThere(uintptr(n.Fd()), uintptr(own.Fd()), uintptr(family), uintptr(kind|unix.SOCK_CLOEXEC), uintptr(protocol))
	}()
	fd = <-done
	return fd, fd >= 0
}

// socketThere moves the thread into the namespace there, opens a socket and moves the thread back.
// It returns -1 if a step fails. The goroutine stays on its thread although it is not locked to it:
// Go's scheduler can move a goroutine at a function call, which raw system calls are not, or by a
// signal, and signals are blocked. First it tries whether the thread may return at all.
//
//go:norace
func socketThere(there, back, family, kind, protocol uintptr) int {
	all, mask := ^uint64(0), uint64(0)
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&mask)), 8, 0, 0)
	fd, moved, lost := -1, false, syscall.Errno(0)
	_, _, err := syscall.RawSyscall(unix.SYS_SETNS, back, unix.CLONE_NEWNET, 0)
	if err == 0 {
		_, _, err = syscall.RawSyscall(unix.SYS_SETNS, there, unix.CLONE_NEWNET, 0)
		moved = err == 0
	}
	if moved {
		made, _, err := syscall.RawSyscall(unix.SYS_SOCKET, family, kind, protocol)
		if err == 0 {
			fd = int(made)
		}
		_, _, lost = syscall.RawSyscall(unix.SYS_SETNS, back, unix.CLONE_NEWNET, 0)
	}
	if lost != 0 {
		runtime.LockOSThread() // the thread ends with this goroutine
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&mask)), 0, 8, 0, 0)
	return fd
}
