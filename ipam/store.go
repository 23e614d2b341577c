// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is the attachment that holds an address within a network. IfName is empty for files
// of a host-local before 0.7, which hold the id alone.
type Holder struct{ ID, IfName string }

// Validate refuses an owner that a file could not represent: a line break separates the two
// fields.
func (o Holder) Validate() error {
	if o.ID == "" || o.IfName == "" {
		return errors.New("container id or interface name is empty")
	}
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }
	if strings.ContainsFunc(o.ID+o.IfName, bad) {
		return fmt.Errorf("container id %q or interface name %q has a forbidden character", o.ID, o.IfName)
	}
	return nil
}

// Reservation is one address and its owner.
type Reservation struct {
	Addr  netip.Addr
	Owner Holder

	// EarlierBoot means that it was made before the node last booted, so that
	// its namespace cannot exist any more.
	EarlierBoot bool

	// Since is the time of the reservation, as far as the store knows.
	Since time.Time
}

// Mode is what a transaction may do.
type Mode int

// The modes.
const (
	Write    Mode = iota // create what is missing (ADD)
	Existing             // work on what exists (DEL, CHECK, GC, STATUS)
	ReadOnly             // change nothing at all (explain)
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

// Begin starts a transaction and keeps other processes out until Close. It waits for them as
// long as ctx allows. With Existing and ReadOnly a missing directory is an empty store, and is
// not created.
func (s *FileStore) Begin(ctx context.Context, m Mode) (tx *Tx, err error) {
	for range 10 { // for the case that the directory is removed while we open it
		if tx, err = s.begin(ctx, m); !errors.Is(err, unix.ESTALE) {
			break
		}
	}
	return tx, err
}

func (s *FileStore) begin(ctx context.Context, m Mode) (*Tx, error) {
	d, err := openDir(s.DataDir, s.Network, m == Write)
	if m != Write && errors.Is(err, fs.ErrNotExist) {
		return &Tx{store: s, mode: m, lockFD: -1, indexFD: -1, index: buildIndex(nil)}, nil
	}
	if err != nil {
		return nil, err
	}
	fd, err := d.lock(ctx, m == ReadOnly)
	if err != nil {
		d.close()
		return nil, err
	}
	tx := &Tx{store: s, mode: m, dir: d, lockFD: fd, indexFD: -1}
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
