// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WhileHeld runs fn with the fact called name, under its lock, so that the last
// holder cannot take it away meanwhile. A fact that nobody holds is left alone.
func (s *Store) WhileHeld(name string, fn func(Fact) error) error {
	dir := s.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.locked(dir, func() error {
		holders, err := os.ReadDir(filepath.Join(dir, refs))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(holders) == 0 {
			removeEmpty(dir) // released between the look and the lock, which made it anew
			return nil
		}
		if err != nil {
			return fmt.Errorf("read holders of %s: %w", name, err)
		}
		f, err := readFact(dir)
		if err != nil {
			return err
		}
		return fn(f)
	})
}
