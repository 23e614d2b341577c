// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// installer runs `patchbay install`. It installs only patchbay and loopback, which a container
// runtime executes; the other plugins run within patchbay. If another package has installed
// loopback, that program stays.
func (c *nodeCommand) installer() (func(context.Context) error, error) {
	program := c.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the program patchbay: %w", err)
		}
		program = filepath.Join(filepath.Dir(self), "patchbay")
	}
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("find the program patchbay: %w: name it with --program, or give --cni-bin-dir= if the plugins are installed", err)
	}
	return func(ctx context.Context) error {
		if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
			return err
		}
		err := install(ctx, program, c.BinDir, "patchbay", "loopback")
		if err != nil {
			err = install(ctx, program, c.BinDir, "patchbay")
		}
		return err
	}, nil
}

func install(ctx context.Context, program, dir string, names ...string) error {
	args := []string{"install"}
	for _, name := range names {
		args = append(args, "--only", name)
	}
	out, err := exec.CommandContext(ctx, program, append(args, dir)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s install %s: %w: %s", program, dir, err, bytes.TrimSpace(out))
	}
	return nil
}
