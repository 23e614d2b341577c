// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/packed"
)

// netavarkDir is the first directory in which podman and netavark look for drivers of networks by default.
const netavarkDir = "/usr/local/libexec/netavark"

// podmanDriver is the driver of podman's networks: a symbolic link to the installed program. So the next install
// replaces the driver, too, in the same moment. The name of the link is the name of the driver.
type podmanDriver struct{ link, program string }

func newPodmanDriver(dir, programs string) podmanDriver {
	if path, err := filepath.Abs(programs); err == nil {
		programs = path
	}
	return podmanDriver{filepath.Join(cmp.Or(dir, netavarkDir), packed.Type), filepath.Join(programs, packed.Type)}
}

// ours reports whether the link leads to the program.
func (d podmanDriver) ours() bool {
	to, err := os.Readlink(d.link)
	return err == nil && to == d.program
}

// free returns an error if the driver's name belongs to something else, unless force is set.
func (d podmanDriver) free(force bool) error {
	if !exists(d.link) || d.ours() || force {
		return nil
	}
	return hinted(fmt.Errorf("install --podman: %s exists and is no link to %s", d.link, d.program), "--force replaces it")
}

// place makes the link, and the directory, which no package of podman's makes.
func (d podmanDriver) place() error {
	in := &installer{dir: filepath.Dir(d.link)}
	if err := os.MkdirAll(in.dir, 0o755); err != nil {
		return fmt.Errorf("install --podman: %w", err)
	}
	if d.ours() {
		return nil
	}
	done := new(installed)
	if err := in.place(os.Symlink, d.program, packed.Type, done, &done.New); err != nil {
		return fmt.Errorf("install --podman: %w", err)
	}
	return nil
}

// remove removes the link if it leads to the program and the program is gone.
func (d podmanDriver) remove() (removed bool, err error) {
	if !d.ours() || exists(d.program) {
		return false, nil
	}
	if err := os.Remove(d.link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove podman's driver: %w", err)
	}
	return true, nil
}
