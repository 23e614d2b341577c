// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const pluginsLong = `Runs the calls of Patchbay's plugins in one process that stays. A plugin's process
then only hands its call over, and does not start Go's runtime. Containers start
without this service, too: if it is not there, or if it refuses, a plugin's process
does the work itself, with the same result.

The service is the program patchbay of --bin, which takes the place of this process.
It ends when another file replaces that program, so let systemd restart it
(patchbay-plugins.service). PATCHBAY_RESIDENT=off in the environment of a plugin
keeps the call out of the service.`

// residentArg is the argument with which the program patchbay runs the calls of plugins
// (handover.Argument). This program does not link the plugins.
const residentArg = "__resident"

// pluginsCommand is `patchbayd plugins`.
type pluginsCommand struct {
	Bin string `long:"bin" value-name:"DIR" default:"/opt/cni/bin" description:"where the plugins are installed"`
}

// Execute executes the program.
func (c *pluginsCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	program := filepath.Join(c.Bin, "patchbay")
	if err := syscall.Exec(program, []string{program, residentArg}, os.Environ()); err != nil {
		return fmt.Errorf("execute %s: %w (patchbay install %s puts it there)", program, err, c.Bin)
	}
	return nil
}
