// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package apart runs this program again in new namespaces, in which it cannot touch the machine's network. An ordinary
// user becomes root in a new user namespace.
package apart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags are those of a new network and mount namespace, and of a user namespace for an ordinary user.
func Flags() uintptr {
	flags := uintptr(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	if os.Geteuid() != 0 {
		flags |= unix.CLONE_NEWUSER
	}
	return flags
}

// Command is this program with arguments, to be started in new namespaces. In a new user namespace it is root. The
// environment has mark, of the form K=V, besides that of this process.
func Command(ctx context.Context, args []string, mark string, flags uintptr) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append(os.Args[:1:1], args...)
	cmd.Env = append(os.Environ(), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// Namespaces returns the kernel's names of this process's mount and network namespace, as the value of a mark.
func Namespaces() string {
	mnt, _ := os.Readlink("/proc/self/ns/mnt") // without /proc both names are empty, and Check returns an error
	net, _ := os.Readlink("/proc/self/ns/net")
	return mnt + " " + net
}

// Check returns an error unless this process has left the namespaces that were is the name of. Otherwise, if a user
// set the mark by hand, the process would remount the machine's /run. variable is the mark's name.
func Check(variable, were string) error {
	mnt, net, _ := strings.Cut(were, " ")
	ownMnt, ownNet, _ := strings.Cut(Namespaces(), " ")
	if mnt == "" || net == "" || ownMnt == "" || mnt == ownMnt || net == ownNet {
		return fmt.Errorf("%s must not be set by hand: this process is not in namespaces of its own", variable)
	}
	return nil
}

// Hint returns why this machine does not allow new namespaces, and what to do. It is empty for an error that says
// something else.
func Hint(err error, proc string) string {
	read := func(key string) string {
		data, rerr := os.ReadFile(filepath.Join(proc, "sys", key))
		if rerr != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	switch {
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOSPC):
		return ""
	case read("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor restricts unprivileged user namespaces here (Ubuntu 23.10 and newer): run it as root, or " +
			"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case read("kernel/unprivileged_userns_clone") == "0":
		return "this system forbids unprivileged user namespaces: run it as root, or sudo sysctl kernel.unprivileged_userns_clone=1"
	case read("user/max_user_namespaces") == "0":
		return "this system forbids user namespaces: run it as root, or sudo sysctl user.max_user_namespaces=10000"
	}
	return "in a container it needs the capabilities NET_ADMIN and SYS_ADMIN and no seccomp filter on unshare and mount"
}
