// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netavark"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

// netavark answers calls of the program netavark. Their words are no commands of ours, so this program can be a
// plugin of netavark's under any name and in any directory. If a user types one of the words, the program answers
// as for an unknown command: only netavark's input is a pipe.
func (a *app) netavark() (status int, called bool) {
	if !netavark.Called(a.args) || !netavark.Asked(a.args) && typed(a.stdin) {
		return 0, false
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // netavark may have ended: an attachment must be undone
	if netavark.Removes(a.args) {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT) // netavark ignores them for its plugins, but Go's runtime handles them again
	} else {
		defer a.interruptible()()
	}
	rootless := a.getenv("_CONTAINERS_USERNS_CONFIGURED") != ""
	if rootless {
		a.warn(a.stayInRun())
	}
	d := &netavark.Driver{Find: a.found, Warn: a.warn, Version: terminal.ReadBuild().Version, Rootless: rootless}
	return d.Serve(a.ctx, a.args, a.stdin, a.stdout), true
}

// typed reports whether standard input is a terminal or empty.
func typed(stdin any) bool {
	f, ok := stdin.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

// found is netavark.Driver's Find. The runtime that it returns can find the network too, even the built-in one.
func (a *app) found(name string) (*chain.List, *chain.Runtime, error) {
	n, err := a.network(name)
	var list *chain.List
	if err == nil {
		list = n.List
	}
	return list, a.runtime(n).With(chain.WithLoad(func(string) (*chain.List, error) { return list, err })), err
}

// stayInRun moves addresses and cached results to /run. Without root, /var/lib is the host's and cannot be written, and podman makes
// a /run for the namespaces of a user's containers, which ends with them. Plugins that are other programs get the
// directory from the environment.
func (a *app) stayInRun() error {
	const name = "PATCHBAY_CNI_DIR"
	if a.getenv(name) != "" {
		return nil
	}
	if err := os.Setenv(name, filepath.Join(a.paths.Run, "cni")); err != nil {
		return err
	}
	a.paths = paths.From(a.getenv)
	return nil
}
