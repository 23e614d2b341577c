// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// `patchbay gc` claims an attachment while it removes the attachment by records and by names. The
// claim makes ADDs of the attachment wait. gc first claims and then looks for records. An ADD
// first writes its record and then looks for a claim. So at least one of them notices the other:
// gc skips the attachment, or the ADD waits until gc is done and writes its record again. Locks
// of records are not enough, because they end with the records while gc is still working.

// Suffix is that of a temporary file (durable.IsTemp), so Scan skips claims.
const Suffix = ".gc~"

// claimTime is how long an ADD waits for a running gc. claimTime is longer than the DELs of
// one attachment take. If a gc is killed, its claim ends at once.
const claimTime = 30 * time.Second

// claimPath returns the path of an attachment's claim.
func (d *Dir) claimPath(network string, o owner.Key) string {
	return filepath.Join(d.Path, Attachments, network, string(o)+Suffix)
}

// Claim makes ADDs of an attachment wait until release is called.
func (d *Dir) Claim(network string, o owner.Key) (release func(), err error) {
	return d.claim(network, o, Patience)
}

func (d *Dir) claim(network string, o owner.Key, wait time.Duration) (release func(), err error) {
	if err := d.Guard(Attachments, network); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	path := d.claimPath(network, o)
	if err := d.lockOrCreate(path, wait); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	return func() { d.dropClaim(path) }, nil
}

// lockOrCreate locks the claim of a killed gc, or makes a new one. If two gcs try at once, only one succeeds.
func (d *Dir) lockOrCreate(path string, wait time.Duration) error {
	for {
		free, missing := d.LockExisting(path, wait)
		if !free {
			return fmt.Errorf("%s: %w", path, errClaimed)
		}
		if !missing {
			return nil
		}
		if err := d.Place(durable.CreateLocked, path, nil); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// dropClaim removes a claim that this process holds. Another process may have dropped it meanwhile, and a third
// one may have the next claim.
func (d *Dir) dropClaim(path string) {
	if d.HasLock(path) {
		_ = durable.Remove(path) // without its lock the file claims nothing; the next ADD or gc removes it
		d.UnlockFile(path)
	}
	d.RemoveNetwork(filepath.Base(filepath.Dir(path)))
}

// Yield waits for a gc that has claimed the attachment, and reports whether there was one.
func (d *Dir) Yield(network string, o owner.Key) bool {
	path := d.claimPath(network, o)
	if d.HasLock(path) || errors.Is(unix.Access(path, unix.F_OK), unix.ENOENT) {
		return false
	}
	if !d.LockFile(path, claimTime) {
		return false // the gc hangs, and the container must not wait longer
	}
	d.dropClaim(path)
	return true
}

// SweepClaims removes the claims of killed gc processes in one network or, if network is "", in all.
func (d *Dir) SweepClaims(network string) error {
	if err := d.Guard(Attachments); err != nil {
		return fmt.Errorf("sweep claims: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(d.Path, Attachments, cmp.Or(network, "*"), "*"+Suffix))
	for _, path := range found {
		d.SweepClaim(path)
	}
	return err
}

// SweepClaim removes a claim unless a process holds it.
func (d *Dir) SweepClaim(path string) {
	if d.LockFile(path, 0) {
		d.dropClaim(path)
	}
}

// InUse is the reason why gc keeps an attachment on which another process works.
const InUse = "an ADD or DEL is working on it"

// errClaimed means that another gc has the claim.
var errClaimed = errors.New("another gc has claimed it")

// Seize is the first step of a gc that removes an attachment. Seize claims the attachment, so
// that ADDs wait, and locks all its records. It passes the files of the records to judge, which
// returns a reason to keep the attachment, or "". If another process works on the attachment,
// Seize itself returns a reason. If the attachment stays, Seize keeps no claim and no lock.
// Otherwise release ends the claim; the locks end when the records are removed, or with UnlockAll or
// Close. Close also ends the claim.
func (d *Dir) Seize(network string, o owner.Key, judge func([]File) (keepReason string)) (release func(), keepReason string, err error) {
	return d.seize(network, o, Patience, judge)
}

// TrySeize is Seize for a caller that can try again later. It does not wait for another gc.
func (d *Dir) TrySeize(network string, o owner.Key, judge func([]File) (keepReason string)) (release func(), keepReason string, err error) {
	return d.seize(network, o, 0, judge)
}

func (d *Dir) seize(network string, o owner.Key, wait time.Duration, judge func([]File) (keepReason string)) (release func(), keepReason string, err error) {
	drop, err := d.claim(network, o, wait)
	if errors.Is(err, errClaimed) {
		return nil, InUse, nil
	}
	if err != nil {
		return nil, "", err
	}
	list, locked, free := d.lockFiles(network, o)
	if keepReason = InUse; free {
		keepReason = judge(list)
	}
	if keepReason == "" {
		return drop, "", nil
	}
	for _, path := range locked {
		d.UnlockFile(path)
	}
	drop()
	return nil, keepReason, nil
}

// File is the file of a record.
type File struct {
	Path, Plugin string
	Since        time.Time // time at which it was written
}

// Files returns the files of one owner's records. They are not locked.
func (d *Dir) Files(network string, o owner.Key) (list []File) {
	for _, path := range d.paths(network, o) {
		if now, err := StatVersion(path); !errors.Is(err, fs.ErrNotExist) {
			list = append(list, fileAt(path, now))
		}
	}
	return list
}

func fileAt(path string, v Version) File {
	return File{path, filepath.Base(path)[owner.Len+1:], time.Unix(0, v.mtime)}
}

// paths returns the paths of one owner's records.
func (d *Dir) paths(network string, o owner.Key) []string {
	paths, _ := filepath.Glob(d.File(network, o, "*")) // cannot fail: the names were validated
	return slices.DeleteFunc(paths, durable.IsTemp)
}

// lockFiles locks the records of one owner. If another process uses one of them, free is false.
func (d *Dir) lockFiles(network string, o owner.Key) (list []File, locked []string, free bool) {
	for _, path := range d.paths(network, o) {
		had := d.HasLock(path)
		if !d.LockFile(path, 0) {
			return nil, locked, false
		}
		if !had {
			locked = append(locked, path)
		}
		now, err := StatVersion(path)
		d.SetSeenVersion(path, now)
		if !errors.Is(err, fs.ErrNotExist) { // otherwise another process has removed it
			list = append(list, fileAt(path, now))
		}
	}
	return list, locked, true
}
