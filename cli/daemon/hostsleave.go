// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/hosts"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/paths"
)

// hostsLeaveCommand is `patchbayd hosts leave`.
type hostsLeaveCommand struct {
	Force bool `long:"force" description:"leave even if containers or Docker networks have addresses of this host's blocks, which other hosts may then assign too"`

	admin admin
	hosts *hostsCommand
}

// Execute removes this host from the store, removes its networking, and prints each step.
func (c *hostsLeaveCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	where := paths.Default()
	if err := durable.MakeDir(where.State, "hosts"); err != nil {
		return err
	}
	dir := filepath.Join(where.State, "hosts")
	unlock, err := lockState(context.Background(), dir, 0)
	if err != nil {
		return fmt.Errorf("%w: systemctl disable --now patchbay-hosts.service", err)
	}
	defer unlock()
	if err := c.leave(where); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(dir, "lock"))
	_ = os.Remove(dir) // fails if the directory has a store in it
	return nil
}

func (c *hostsLeaveCommand) leave(where paths.Paths) error {
	dir, err := c.hosts.confDir()
	if err != nil {
		return err
	}
	fabric, err := mesh.Open(mesh.Options{Paths: where})
	if err != nil {
		return err
	}
	defer fabric.Close()
	return c.admin.do(func(ctx context.Context, a hosts.Admin) error {
		return hosts.Leaving{
			Store: a.Store, Paths: where, ConfDir: dir, Force: c.Force,
			Clear: func(ctx context.Context) error { return fabric.Clear(ctx, mesh.Self{}) },
			Log:   printLine,
		}.Do(ctx)
	})
}

// printLine prints one step of a command.
func printLine(format string, args ...any) {
	fmt.Fprintf(os.Stdout, format+"\n", args...) //nolint:errcheck // there is nowhere to report it
}
