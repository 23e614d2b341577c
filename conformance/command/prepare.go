// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/apart"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// prepare gives this process an empty /run and /var/lib. The directories of plugins stay visible there: a CI system may
// keep its work below /var/lib.
func prepare(path []string) error {
	var dirs []string
	for _, dir := range path {
		if strings.HasPrefix(dir+"/", "/run/") || strings.HasPrefix(dir+"/", "/var/lib/") {
			dirs = append(dirs, dir)
		}
	}
	back, err := kept(dirs)
	if err != nil {
		return err
	}
	if err := nettest.Prepare(); err != nil {
		return &failure{error: err, hint: apart.Hint(err, "/proc"), code: exitUntold}
	}
	return back()
}

// kept opens directories, and returns the function that mounts them again where they were.
func kept(dirs []string) (back func() error, err error) {
	fds := make([]int, len(dirs))
	for i, dir := range dirs {
		if fds[i], err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
	}
	return func() error {
		for i, dir := range dirs {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fds[i]), dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("show %s: %w", dir, err)
			}
		}
		return nil
	}, nil
}
