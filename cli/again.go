// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/apart"
)

// reexec starts this program again in new namespaces with the same arguments, waits for that
// process and exits with its status. An environment variable, whose name is in variable, holds
// the names of the original namespaces. If flags ask for a user namespace, the new process is
// root in that namespace.
func (a *app) reexec(variable string, flags uintptr) error {
	cmd := apart.Command(a.ctx, a.args, variable+"="+apart.Namespaces(), flags)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
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
