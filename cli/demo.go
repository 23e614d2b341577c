// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const demoLong = `Attach two containers to the built-in network and prove, over IPv4 and IPv6,
that they reach each other, that the host reaches them, that a published
port is reached from outside, and that traffic to the outside is
masqueraded: each server reports the client's address. Then everything is
removed, and that is proven too.

All of it happens in separate namespaces: nothing touches this machine's
network. An ordinary user can run it; nothing needs to be
installed.`

// demoInside is an environment variable. It is set in the process that runs in the new
// namespaces.
const demoInside = "PATCHBAY_DEMO_INSIDE"

type demoCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// Execute starts this program again in new namespaces.
func (c *demoCommand) Execute([]string) error {
	if c.app.getenv(demoInside) != "" {
		return c.inside()
	}
	flags := uintptr(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	if os.Geteuid() != 0 {
		flags |= unix.CLONE_NEWUSER
	}
	return c.app.reexec(demoInside, flags)
}

// noNamespaces adds to err why this machine does not allow new namespaces, and what to do.
func (a *app) noNamespaces(err error) error {
	read := func(key string) string {
		data, rerr := os.ReadFile(filepath.Join(a.paths.Proc, "sys", key))
		if rerr != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	switch {
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOSPC):
		return err
	case read("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return hinted(err, "AppArmor restricts unprivileged user namespaces here (Ubuntu 23.10 and newer): run it as root, or "+
			"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0")
	case read("kernel/unprivileged_userns_clone") == "0":
		return hinted(err, "this system forbids unprivileged user namespaces: run it as root, or sudo sysctl kernel.unprivileged_userns_clone=1")
	case read("user/max_user_namespaces") == "0":
		return hinted(err, "this system forbids user namespaces: run it as root, or sudo sysctl user.max_user_namespaces=10000")
	}
	return hinted(err, "in a container it needs the capabilities NET_ADMIN and SYS_ADMIN and no seccomp filter on unshare and mount")
}

// inside runs the demo. This process is in the new namespaces already.
func (c *demoCommand) inside() error {
	if err := c.app.isInside(demoInside); err != nil {
		return err
	}
	if err := privateRun(); err != nil {
		return c.app.noNamespaces(err)
	}
	p := &c.app.paths // all state is in the private /run
	p.Run, p.State, p.CNI, p.NetNS = "/run/patchbay", "/run/state", "/run/cni", "/run/netns"
	d := &demo{app: c.app}
	err := d.run()
	if c.JSON {
		return errors.Join(c.app.printJSON(&d.report), err)
	}
	return err
}

// privateRun mounts an empty file system over /run, only for this process.
func privateRun() error {
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on /run: %w", err)
	}
	return nil
}
