// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// TestSaveWaitsForTheDisk checks that a power loss does not remove what a driver remembers. The
// record of an attachment does not wait for the disk, because a power loss ends the container
// too.
func TestSaveWaitsForTheDisk(t *testing.T) {
	s := Open(t.TempDir())
	defer s.Records.Close()
	for _, kind := range []string{Networks, Pools} {
		if err := withoutDisk(t, func() error { return s.Save(kind, "net", "text") }); !errors.Is(err, unix.EIO) {
			t.Errorf("%s saved to a disk that fails: %v", kind, err)
		}
		if err := s.Save(kind, "net", "text"); err != nil {
			t.Error(err)
		}
	}
	a := &DriverState{Owner: owner.Of("net", "c", "eth0"), ContainerID: "c", IfName: "eth0", Driver: cnm.DriverAddr{Name: "lab"}}
	if err := withoutDisk(t, func() error { return s.Write("net", "cnm", a) }); err != nil {
		t.Error(err)
	}
}

// withoutDisk runs fn in a separate thread. In that thread every fsync(2) fails.
func withoutDisk(t *testing.T, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if err := failFsync(); err != nil {
			t.Error(err)
		}
		done <- fn()
	}()
	return <-done
}

// failFsync sets a seccomp(2) filter for this thread.
func failFsync() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
