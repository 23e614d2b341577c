// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
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
	fd = -1
	err = n.Visit(func() error { // finds the reason, if there is one
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	if err != nil && fd >= 0 {
		unix.Close(fd) //nolint:errcheck // nothing was sent
		fd = -1
	}
	return fd, err
}

// quickSocket takes a tenth of the time of Visit in a new process, where the first
// runtime.LockOSThread starts another thread.
func (n *NS) quickSocket(family, kind, protocol int) (fd int, ok bool) {
	done := make(chan int, 1)
	go func() { // the caller may be on a thread with another home
		home, err := Current()
		if err != nil {
			done <- -1
			return
		}
		defer home.Close() //nolint:errcheck // read only
		done <- socketIn(uintptr(n.Fd()), uintptr(home.Fd()), uintptr(family), uintptr(kind|unix.SOCK_CLOEXEC), uintptr(protocol))
	}()
	fd = <-done
	return fd, fd >= 0
}

// returns is how often socketIn tries to return.
const returns = 1000

var lost = []byte("patchbay: a thread cannot leave a container's network namespace: the process ends\n")

// socketIn moves the thread into the namespace target, opens a socket and moves the thread home. It
// returns -1 if a step fails. The goroutine stays on its thread although it is not locked to it:
// Go's scheduler can move a goroutine at a function call, which raw system calls are not, or by a
// signal, and signals are blocked.
//
// First it tries whether the thread may return at all. After that, setns(2) can only fail for lack of
// memory. If it fails again and again, the process ends: any other goroutine could run on this thread.
//
//go:norace
func socketIn(target, home, family, kind, protocol uintptr) int {
	all, mask := ^uint64(0), uint64(0)
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&mask)), 8, 0, 0)
	fd := -1
	_, _, err := syscall.RawSyscall(unix.SYS_SETNS, home, unix.CLONE_NEWNET, 0)
	if err == 0 {
		_, _, err = syscall.RawSyscall(unix.SYS_SETNS, target, unix.CLONE_NEWNET, 0)
	}
	if err == 0 {
		made, _, err := syscall.RawSyscall(unix.SYS_SOCKET, family, kind, protocol)
		if err == 0 {
			fd = int(made)
		}
		for n := 1; ; n++ {
			if _, _, err := syscall.RawSyscall(unix.SYS_SETNS, home, unix.CLONE_NEWNET, 0); err == 0 {
				break
			}
			if n == returns {
				_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(&lost[0])), uintptr(len(lost)))
				_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
			}
		}
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&mask)), 0, 8, 0, 0)
	return fd
}
