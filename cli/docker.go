// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cli/gc"
)

const dockerLong = `Runs "patchbayd docker", the driver that makes CNI networks available to
Docker:

  patchbay docker ps              list its endpoints, with the published ports that
                                  Docker cannot show
  patchbay docker gc              show what it holds for containers that are gone;
                                  --apply removes it
  patchbay docker install         install the driver as a service; or uninstall

The driver needs HTTP, which this program does not contain, so patchbayd must be
installed.`

// dockerCommand is `patchbay docker`.
type dockerCommand struct {
	app *app
}

// Execute replaces this process with patchbayd, and passes the arguments.
func (c *dockerCommand) Execute(args []string) error {
	if len(args) == 0 {
		return usage("the service itself is patchbayd docker", "name a command: ps, gc, install or uninstall")
	}
	program, err := gc.DriverProgram()
	if err != nil {
		return fmt.Errorf("docker %s: %w", args[0], err)
	}
	err = unix.Exec(program, append([]string{"patchbayd", "docker"}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", program, err)
}
