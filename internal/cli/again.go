// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// again runs this command line once more in new namespaces, with a variable in
// its environment that tells it so, and ends with its status. In a new user
// namespace it is root.
func (a *app) again(variable string, flags uintptr) error {
	cmd := exec.CommandContext(a.ctx, "/proc/self/exe")
	cmd.Args = append(os.Args[:1:1], a.args...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	// An interrupt lets it clean up; a kill leaves nothing either, since what it
	// makes is in namespaces that end with it.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return status(err)
	case err != nil:
		return a.noNamespaces(fmt.Errorf("make namespaces: %w", err))
	}
	return nil
}
