// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FileStore keeps the reservations of one network in the layout of the
// reference's host-local.
type FileStore struct {
	DataDir string // the directory of all networks; Begin(Write) creates it
	Network string // its name, one path element

	// IndexDir holds the indexes, one file for each network, readable by root alone. If it
	// is empty or not writable, each transaction builds the index in memory.
	IndexDir string

	Boot Boot

	// Warn, if set, gets reports of repaired damage.
	Warn func(error)
}

func (s *FileStore) warn(err error) {
	if s.Warn != nil {
		s.Warn(err)
	}
}

// Begin opens the state directory and locks it. With Existing and ReadOnly a missing
// directory is an empty store, and is not created.
func (s *FileStore) Begin(ctx context.Context, m Mode) (Tx, error) {
	tx, err := s.begin(ctx, m)
	for range 10 { // for the case that the directory is removed while we open it
		if !errors.Is(err, unix.ESTALE) {
			break
		}
		tx, err = s.begin(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	return tx, nil
}

func (s *FileStore) begin(ctx context.Context, m Mode) (*fileTx, error) {
	d, err := openDir(s.DataDir, s.Network, m == Write)
	if m != Write && errors.Is(err, fs.ErrNotExist) {
		return &fileTx{store: s, mode: m, lockFD: -1, indexFD: -1, index: buildIndex(nil)}, nil
	}
	if err != nil {
		return nil, err
	}
	fd, err := d.lock(ctx, m == ReadOnly)
	if err != nil {
		d.close()
		return nil, err
	}
	tx := &fileTx{store: s, mode: m, dir: d, lockFD: fd, indexFD: -1}
	if err := tx.loadIndex(); err != nil {
		tx.Close()
		return nil, err
	}
	return tx, nil
}

// indexPath names the index of a directory by a hash of its real path.
func (s *FileStore) indexPath(d *dir) string {
	sum := sha256.Sum256([]byte(d.realPath()))
	return filepath.Join(s.IndexDir, hex.EncodeToString(sum[:16])+".idx")
}
