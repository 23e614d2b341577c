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

// reexec runs this command line again in new namespaces, and ends with its status. A
// variable in its environment names the original namespaces. In a new user namespace it is
// root.
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
	// An interrupt lets it clean up. A kill leaves nothing either, since everything it
	// makes is in namespaces that end with it.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err := cmd.Run()
	var ended *exec.ExitError
	i, stopped := a.interrupted()
	switch {
	case stopped: // it got the signal too, and has reported it
		return exit(exitSignal + int(i.Signal))
	case errors.As(err, &ended):
		return status(err)
	case err != nil:
		return a.noNamespaces(fmt.Errorf("make namespaces: %w", err))
	}
	return nil
}

// namespaces names the mount and the network namespace of this process.
func namespaces() string {
	mnt, _ := os.Readlink("/proc/self/ns/mnt") // without /proc both are empty and isInside refuses
	net, _ := os.Readlink("/proc/self/ns/net")
	return mnt + " " + net
}

// isInside checks that this process has left the namespaces that variable names. If a user
// sets the variable by hand, the process must not remount the machine's /run.
func (a *app) isInside(variable string) error {
	mnt, net, _ := strings.Cut(a.getenv(variable), " ")
	ownMnt, ownNet, _ := strings.Cut(namespaces(), " ")
	if mnt == "" || net == "" || ownMnt == "" || mnt == ownMnt || net == ownNet {
		return fmt.Errorf("%s must not be set by hand: this process is not in namespaces of its own", variable)
	}
	return nil
}
