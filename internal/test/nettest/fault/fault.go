// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package fault lets system calls of a program fail, one in each run. The program asks its parent before
// each system call that changes something or talks to the kernel's network (seccomp_unotify(2)), and the
// parent lets one of them return an error. So every step can fail, whatever the code calls a step.
package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// env tells a program to ask its parent.
const env = "PATCHBAY_TEST_FAULTS"

// mayFail are the system calls that can fail, each with an error that a working node can give.
var mayFail = map[int]struct {
	name  string
	errno unix.Errno
}{
	unix.SYS_UNLINKAT:  {"unlinkat", unix.EIO},
	unix.SYS_RENAMEAT:  {"renameat", unix.EIO},
	unix.SYS_LINKAT:    {"linkat", unix.ENOSPC},
	unix.SYS_MKDIRAT:   {"mkdirat", unix.ENOSPC},
	unix.SYS_FTRUNCATE: {"ftruncate", unix.EIO},
	unix.SYS_PWRITE64:  {"pwrite", unix.EIO},
	unix.SYS_FLOCK:     {"flock", unix.ENOLCK},
	unix.SYS_SENDTO:    {"sendto", unix.ENOBUFS}, // netlink, to read and to change
	unix.SYS_SENDMSG:   {"sendmsg", unix.ENOBUFS},
	unix.SYS_OPENAT:    {"openat", unix.EMFILE}, // if it may write
}

// program is the filter: the calls in mayFail ask, an openat only if it may write.
func program() (code []unix.SockFilter) {
	const load, equal, set, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	code = append(code, unix.SockFilter{Code: load, K: 0})
	for call := range mayFail {
		if call == unix.SYS_OPENAT {
			continue
		}
		code = append(code, unix.SockFilter{Code: equal, K: uint32(call), Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	const flags = 16 + 2*8 // the third argument's lower half
	return append(code, unix.SockFilter{Code: equal, K: unix.SYS_OPENAT, Jt: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: load, K: flags},
		unix.SockFilter{Code: set, K: unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT, Jt: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_USER_NOTIF})
}

// Ask makes this process ask its parent, if the parent is an [Injector]. TestMain calls it before
// anything else.
func Ask() {
	if os.Getenv(env) == "" {
		return
	}
	err := os.Unsetenv(env) // programs that this process starts ask by the same filter
	if err == nil {
		err = install()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "install the filter:", err)
		os.Exit(1)
	}
}

// install installs the filter in all threads of this process. It writes the number of the descriptor by
// which the parent answers to descriptor 3.
func install() error {
	code := program()
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	const how = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, how, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	_, err := unix.Write(3, []byte(strconv.Itoa(int(fd))))
	return errors.Join(err, unix.Close(3))
}

// Injector lets one system call of a process fail.
type Injector struct {
	At    int // which one, from 1; 0 is none
	Calls int // how many could have failed
	what  string
}

// String says what failed.
func (i *Injector) String() string {
	return fmt.Sprintf("a fault at %d of %d: %s", i.At, i.Calls, i.what)
}

// Failed reports whether a system call failed.
func (i *Injector) Failed() bool { return i.what != "" }

// Run runs a program whose main function calls Ask, and returns its standard output. The error has its
// standard error too. Run returns when all processes that the program started have ended.
func (i *Injector) Run(cmd *exec.Cmd) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // read only
	cmd.Env, cmd.ExtraFiles = append(cmd.Env, env+"=1"), []*os.File{w}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return nil, err
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	text, _ := io.ReadAll(r) // an empty text is no number
	listener, err := listenerOf(cmd.Process.Pid, string(text))
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("no listener %q: %w: %w: %s", text, err, cmd.Wait(), log.Bytes())
	}
	answered := make(chan error)
	go func() { answered <- i.answer(listener) }()
	err = cmd.Wait()
	if aerr := errors.Join(<-answered, unix.Close(listener)); aerr != nil {
		return nil, aerr
	}
	if err != nil {
		err = fmt.Errorf("%w: %s%s", err, out.Bytes(), log.Bytes())
	}
	return out.Bytes(), err
}

// listenerOf copies the descriptor by which a process asks.
func listenerOf(pid int, fd string) (int, error) {
	number, err := strconv.Atoi(fd)
	if err != nil {
		return -1, err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process) //nolint:errcheck // nothing was written
	return unix.PidfdGetfd(process, number, 0)
}

// question and answer are struct seccomp_notif and struct seccomp_notif_resp.
type question struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// answer answers until no thread can ask any more.
func (i *Injector) answer(listener int) error {
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents != 0 {
				return nil
			}
			continue
		}
		var q question
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); err != nil {
			continue // the thread that asked has ended
		}
		a := i.decide(&q)
		_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)) // the thread may have ended
	}
}

// decide lets the call at i.At fail, but no rmdir: an empty directory is no state, and may stay.
func (i *Injector) decide(q *question) answer {
	proceed := answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if q.nr == unix.SYS_UNLINKAT && q.args[2]&unix.AT_REMOVEDIR != 0 {
		return proceed
	}
	if i.Calls++; i.Calls != i.At {
		return proceed
	}
	call := mayFail[int(q.nr)]
	i.what = fmt.Sprintf("%s: %v", call.name, call.errno)
	return answer{id: q.id, err: -int32(call.errno)}
}

func ioctl(fd int, what uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), what, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
