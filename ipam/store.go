// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam gives out addresses. It has the address ranges, the allocator, and the store. The
// store keeps reservations on disk in the layout of the reference's host-local.
//
// Range and RangeSet follow the reference's rules and use its error texts. Allocate, Release,
// Stale and Status work on a Tx, a transaction on a FileStore, and never touch a file
// themselves.
//
// # On disk
//
// The directory <dataDir>/<network>/ holds one file for each reserved address. The file's name is
// the address, and its whole content is "<container id>\r\n<ifname>". The file last_reserved_ip.N
// holds the cursor of set N: the address that was given out last. The empty file lock is for
// flock(2). These files are the truth. At any moment the reference's host-local can replace ours,
// or ours the reference's, because both use these files. If there is a file grant, it limits what
// ours gives out (grant.go).
//
// # The index
//
// FileStore keeps an index outside that directory. With the index, an ADD, a DEL or a lookup
// takes no longer for 60,000 reservations than for none. The index is a cache. If the index is
// missing, damaged, out of date or of another schema, FileStore builds it again from the files.
// If the index cannot be written, FileStore keeps it in memory during the call.
//
// The index records the directory's device, inode, mtime and ctime. If any of them differs now,
// the index is out of date. Before Linux 6.13 the kernel's clock for mtime moves in ticks of 1 to
// 4 ms. If another program changed the directory in the same tick as FileStore, the mtime would
// not show that program's change. So after each of its own changes, and before each scan for an
// index file, FileStore sets the directory's mtime ten seconds into the past. Any later change sets
// the mtime to the present, which never equals the recorded value. This works within a tick, and on
// file systems that store whole seconds.
//
// In one case FileStore misses a change at first: a program changes the directory without the
// lock, in the 100 µs between FileStore's check and its new mtime. An operator's rm or cp can do
// so; the reference takes the lock. A removed file is noticed by the owner's DEL. It is also
// noticed before a pool counts as full, because Allocate reports that only after an undisturbed
// scan. An added file is noticed by Reserve, because its link(2) fails. Both are noticed by the
// next scan (GC, a full pool, or any change by another program). No address is ever given out
// twice.
//
// After a crash the index is marked dirty, and the next call builds it again.
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

// Holder is the attachment that owns an address within a network. IfName is empty if a
// host-local before 0.7 wrote the file, which then holds only the container id.
type Holder struct{ ID, IfName string }

// Validate refuses an owner with a line break, because a line break separates the two fields
// in a file.
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
	Addr   netip.Addr
	Holder Holder

	// EarlierBoot means that the reservation was made before the last boot of the node. So the
	// namespace of the reservation cannot exist any more.
	EarlierBoot bool

	// Since is the time of the reservation, if the store knows it.
	Since time.Time
}

// Mode says what a transaction may change.
type Mode int

// These are the modes of a transaction.
const (
	Write    Mode = iota // create a missing directory (ADD)
	Existing             // change only an existing directory (DEL, CHECK, GC, STATUS)
	ReadOnly             // change nothing (explain)
)

// FileStore keeps the reservations of one network in the layout of the
// reference's host-local.
type FileStore struct {
	DataDir string // parent directory of all networks; Begin(Write) creates it
	Network string // name of the network, a single path element

	// IndexDir is the directory of the index files, one for each network. Only root can read it.
	// If IndexDir is empty or not writable, each transaction builds the index in memory.
	IndexDir string

	Boot Boot

	// Warn, if set, receives reports about damage that was repaired.
	Warn func(error)
}

func (s *FileStore) warn(err error) {
	if s.Warn != nil {
		s.Warn(err)
	}
}

// Begin starts a transaction and excludes other processes until Close. Begin waits for them as
// long as ctx allows. With Existing or ReadOnly, Begin treats a missing directory like an
// empty store and does not create it.
func (s *FileStore) Begin(ctx context.Context, m Mode) (tx *Tx, err error) {
	for range 10 { // if another process removed the directory while we opened it, try again
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
	loaded := false
	defer func() {
		if !loaded { // also after a panic
			tx.Close()
		}
	}()
	if err := tx.loadIndex(); err != nil {
		return nil, err
	}
	loaded = true
	return tx, nil
}

// indexPath returns the path of the index of a directory. The file's name is a hash of the
// directory's real path.
func (s *FileStore) indexPath(d *dir) string {
	sum := sha256.Sum256([]byte(d.realPath()))
	return filepath.Join(s.IndexDir, hex.EncodeToString(sum[:16])+".idx")
}
