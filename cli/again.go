// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// reexec starts this program again in new namespaces with the same arguments, waits for that
// process and exits with its status. An environment variable, whose name is in variable, holds
// the names of the original namespaces. If flags ask for a user namespace, the new process is
// root in that namespace.
func (a *app) reexec(variable string, flags uintptr) error {
	cmd := exec.CommandContext(a.ctx, "/proc/self/exe")
	cmd.Args = append(os.Args[:1:1], a.args...)
	cmd.Env = append(os.Environ(), variable+"="+namespaces())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	// The new process gets the signal too, which a terminal sends to both, and can clean up. If it is
	// killed instead, nothing is left: all that it makes is in its namespaces, which end with it.
	cmd.Cancel = func() error {
		if i, ok := a.interrupted(); ok {
			return cmd.Process.Signal(i.Signal)
		}
		return cmd.Process.Signal(unix.SIGTERM)
	}
	err := cmd.Run()
	var ended *exec.ExitError
	i, stopped := a.interrupted()
	switch {
	case stopped: // the new process got the signal too, and has reported it
		return exit(exitSignal + int(i.Signal))
	case errors.As(err, &ended):
		return status(err)
	case err != nil:
		return a.noNamespaces(fmt.Errorf("make namespaces: %w", err))
	}
	return nil
}

// namespaces returns the kernel's names of this process's mount and network namespace.
func namespaces() string {
	mnt, _ := os.Readlink("/proc/self/ns/mnt") // without /proc both names are empty, and isInside returns an error
	net, _ := os.Readlink("/proc/self/ns/net")
	return mnt + " " + net
}

// isInside returns an error unless this process has left the namespaces that the environment
// variable names. Otherwise, if a user set the variable by hand, the process would remount the
// machine's /run.
func (a *app) isInside(variable string) error {
	mnt, net, _ := strings.Cut(a.getenv(variable), " ")
	ownMnt, ownNet, _ := strings.Cut(namespaces(), " ")
	if mnt == "" || net == "" || ownMnt == "" || mnt == ownMnt || net == ownNet {
		return fmt.Errorf("%s must not be set by hand: this process is not in namespaces of its own", variable)
	}
	return nil
}
