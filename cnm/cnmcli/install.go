// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// install puts the program into a directory under the plugins' names. It may run while
// containers start: it makes one copy durable, and renames it to each name.
func (a *app) install(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	temp, err := copySelf(dir)
	if err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	defer os.Remove(temp)
	for _, p := range Plugins() {
		to := filepath.Join(dir, p.Name)
		next := to + "~"
		if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("install %s: %w", to, err)
		}
		if err := os.Link(temp, next); err != nil {
			return fmt.Errorf("install %s: %w", to, err)
		}
		if err := os.Rename(next, to); err != nil {
			return fmt.Errorf("install %s: %w", to, err)
		}
		if err := a.say("%s", to); err != nil {
			return err
		}
	}
	return nil
}

func copySelf(dir string) (path string, err error) {
	in, err := openSelf()
	if err != nil {
		return "", err
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := os.CreateTemp(dir, ".patchbay-cnm~")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
	if err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return out.Name(), nil
}
