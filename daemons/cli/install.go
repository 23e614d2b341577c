// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/dist/systemd"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// These are the directories for programs and units that an administrator installs
// (file-hierarchy(7), systemd.unit(5)). The units name the program by its path here.
const (
	programPath = "/usr/local/bin/patchbayd"
	unitDir     = "/etc/systemd/system"
)

// These are the units of `patchbayd docker`. install enables the socket. The first call to the
// socket starts the service.
const (
	dockerService = "patchbay-docker.service"
	dockerSocket  = "patchbay-docker.socket"
)

// installFlags are the flags of `patchbayd docker install` and `uninstall`.
type installFlags struct {
	DestDir string `long:"destdir" value-name:"DIR" description:"install, uninstall: below DIR, for a package or an image; systemd is not called"`
	Print   bool   `long:"print" description:"install, uninstall: print what would be done, and do nothing"`
	Force   bool   `long:"force" description:"uninstall: even if networks of Docker use the driver"`
}

// step is one change. If nothing differs, there is no step, so an interrupted install can be
// repeated.
type step struct {
	says string
	do   func() error
}

// installer copies this program and its units to where systemd finds them.
type installer struct {
	installFlags
	out    io.Writer
	source string // the program to copy
	booted string // a path that exists while systemd runs (sd_booted(3))
}

func newInstaller(f installFlags, out io.Writer) *installer {
	return &installer{installFlags: f, out: out, source: "/proc/self/exe", booted: "/run/systemd/system"}
}

// install installs or updates the driver.
func (in *installer) install() error {
	steps, err := in.files()
	if err != nil {
		return err
	}
	if in.DestDir == "" {
		update := len(steps) > 0
		steps = append(steps, systemctl("daemon-reload"), systemctl("enable", "--now", dockerSocket))
		if update { // meanwhile Docker's calls wait at the socket
			steps = append(steps, systemctl("try-restart", dockerService))
		}
	}
	return in.run(steps)
}

// uninstall removes what install made. While Docker's networks use the driver, it refuses, unless
// --force is given. If there are networks in the state, it keeps the state.
func (in *installer) uninstall(networks int) error {
	if networks > 0 && !in.Force {
		return fmt.Errorf("%d of Docker's networks use the driver: `docker network rm` them first, or --force", networks)
	}
	var gone []step
	for _, unit := range []string{dockerSocket, dockerService} {
		gone = in.without(gone, filepath.Join(unitDir, unit))
	}
	var steps []step
	if len(gone) > 0 && in.DestDir == "" {
		steps = append(steps, systemctl("disable", "--now", dockerSocket, dockerService))
		gone = append(gone, systemctl("daemon-reload"))
	}
	steps = append(steps, gone...)
	if !in.needed() {
		steps = in.without(steps, programPath)
	}
	return in.run(steps)
}

// without adds a step that removes a file, unless the file is another program's.
func (in *installer) without(steps []step, path string) []step {
	switch err := in.ours(in.at(path)); {
	case err == nil:
		return append(steps, remove(in.at(path)))
	case !errors.Is(err, fs.ErrNotExist):
		fmt.Fprintf(in.out, "keep %s: %v\n", in.at(path), err) //nolint:errcheck // there is nowhere to report it
	}
	return steps
}

// networksIn counts the networks in the driver's state.
func networksIn(stateDir string) (n int) {
	entries, err := os.ReadDir(filepath.Join(stateDir, "docker", "networks"))
	if err != nil {
		return 0 // the driver has never run
	}
	for _, e := range entries {
		if !durable.IsTemp(e.Name()) {
			n++
		}
	}
	return n
}

// needed reports whether another unit of Patchbay starts the program.
func (in *installer) needed() bool {
	units, _ := filepath.Glob(in.at(unitDir + "/patchbay-*.service")) // cannot fail: the pattern is valid
	return slices.ContainsFunc(units, func(path string) bool { return filepath.Base(path) != dockerService })
}

func (in *installer) at(path string) string { return filepath.Join(in.DestDir, path) }

// files returns steps for the program and the units that differ from their files.
func (in *installer) files() (steps []step, err error) {
	program, err := os.ReadFile(in.source)
	if err != nil {
		return nil, fmt.Errorf("read this program: %w", err)
	}
	if steps, err = in.file(steps, programPath, program, 0o755); err != nil {
		return nil, err
	}
	for _, unit := range []string{dockerService, dockerSocket} {
		text, err := systemd.Units.ReadFile(unit)
		if err != nil {
			return nil, err
		}
		if steps, err = in.file(steps, filepath.Join(unitDir, unit), text, 0o644); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// file adds a step that writes a file, unless the file is up to date. It refuses to replace what
// Patchbay did not write.
func (in *installer) file(steps []step, path string, want []byte, mode fs.FileMode) ([]step, error) {
	path = in.at(path)
	switch err := in.ours(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("%s: %w: move it away first", path, err)
	default:
		have, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if fi, err := os.Lstat(path); err == nil && bytes.Equal(have, want) && fi.Mode().Perm() == mode {
			return steps, nil
		}
	}
	return append(steps, step{"write " + path, func() error { return write(path, want, mode) }}), nil
}

// ours returns an error for a file that is not Patchbay's. Our units name our pages. A program has in
// its build information from which package it was built, in whatever release.
func (in *installer) ours(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("not a file of ours, but %v", fi.Mode().Type())
	case path != in.at(programPath):
		text, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(text, []byte("Documentation=https://github.com/patchbay-net/patchbay/")) {
			err = errNotOurs
		}
		return err
	}
	self, err := buildinfo.ReadFile(in.source)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	if has, err := buildinfo.ReadFile(path); err != nil || has.Path != self.Path {
		return errNotOurs
	}
	return nil
}

var errNotOurs = errors.New("not Patchbay's")

// write replaces a file by a rename, so a running program keeps the old file. The new file is
// complete, executable and synced to the disk before it gets its name, because systemd may
// start it at any time.
func write(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return durable.WriteSynced(path, data, mode)
}

func remove(path string) step {
	return step{"remove " + path, func() error { return durable.Remove(path) }}
}

func systemctl(args ...string) step {
	says := "systemctl " + strings.Join(args, " ")
	return step{says, func() error {
		if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", says, err, bytes.TrimSpace(out))
		}
		return nil
	}}
}

// run prints each step and runs it.
func (in *installer) run(steps []step) error {
	if in.DestDir == "" && !in.Print {
		if _, err := os.Stat(in.booted); err != nil {
			return errors.New("No systemd: have your init system start `patchbayd docker` before dockerd")
		}
		if os.Geteuid() != 0 {
			return errors.New("needs root, or --destdir")
		}
	}
	for _, s := range steps {
		fmt.Fprintln(in.out, s.says) //nolint:errcheck // there is nowhere to report it
		if in.Print {
			continue
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}
