// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/owner"
)

// Holds reports whether o has a reference to the fact called name.
func (s *Store) Holds(name string, o owner.Key) bool {
	_, err := os.Lstat(s.Reference(name, o))
	return err == nil
}

// Reference is the path of o's reference to the fact called name.
func (s *Store) Reference(name string, o owner.Key) string {
	return filepath.Join(s.factDir(name), refs, string(o))
}

// Stands reports whether the fact called name has a holder.
func (s *Store) Stands(name string) bool {
	yes, _ := heldByOthers(filepath.Join(s.factDir(name), refs), "")
	return yes
}

// InternalFact is the name of the fact that the host forwards nothing from or to a link,
// which is the bridge of an internal network.
func InternalFact(link string) string { return "internal-" + link }

// WhileHeld runs fn with the fact called name, under its lock, so that the last holder
// cannot remove it meanwhile. It does nothing for a fact without a holder.
func (s *Store) WhileHeld(ctx context.Context, name string, fn func(Fact) error) error {
	dir := s.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.locked(ctx, dir, func() error {
		holders, err := os.ReadDir(filepath.Join(dir, refs))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(holders) == 0 {
			removeEmpty(dir) // released before the lock, which made the directory anew
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
