// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/owner"
)

// `patchbay gc` claims an attachment while it removes the attachment by records and by names. The
// claim makes ADDs of the attachment wait. gc first claims and then looks for records. An ADD
// first writes its record and then looks for a claim. So at least one of them notices the other:
// gc skips the attachment, or the ADD waits until gc is done and writes its record again. Locks
// of records are not enough, because they end with the records while gc is still working.

// claimSuffix makes Scan skip a claim like a temporary file (durable.IsTemp).
const claimSuffix = ".gc~"

// claimTime is how long an ADD waits for a running gc. claimTime is longer than the DELs of
// one attachment take. If a gc is killed, its claim ends at once.
const claimTime = 30 * time.Second

func (d *Dir) claimPath(network string, o owner.Key) string {
	return filepath.Join(d.Path, attachments, network, string(o)+claimSuffix)
}

// Claim makes ADDs of an attachment wait until release is called.
func (d *Dir) Claim(network string, o owner.Key) (release func(), err error) {
	return d.claim(network, o, patience)
}

func (d *Dir) claim(network string, o owner.Key, wait time.Duration) (release func(), err error) {
	if err := d.guard(attachments, network); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	path := d.claimPath(network, o)
	if err := d.lockOrCreate(path, wait); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	return func() { d.dropClaim(path) }, nil
}

// lockOrCreate locks the claim of a killed gc, or makes a new one. Only one of two gcs can do either.
func (d *Dir) lockOrCreate(path string, wait time.Duration) error {
	for {
		free, missing := d.lockThere(path, wait)
		if !free {
			return fmt.Errorf("%s: %w", path, errClaimed)
		}
		if !missing {
			return nil
		}
		if err := d.placeBy(durable.CreateLocked, path, nil); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// dropClaim removes a claim that this process holds. Another process may have dropped it meanwhile, and a third
// one may have the next claim.
func (d *Dir) dropClaim(path string) {
	if d.holds(path) {
		_ = durable.Remove(path) // a file that stays is no claim; the next ADD or gc removes it
		d.unlock(path)
	}
	d.removeNetwork(filepath.Base(filepath.Dir(path)))
}

// yield waits for a gc that has claimed the attachment. yield reports whether there was one.
func (d *Dir) yield(network string, o owner.Key) bool {
	path := d.claimPath(network, o)
	if d.holds(path) || errors.Is(unix.Access(path, unix.F_OK), unix.ENOENT) {
		return false
	}
	if !d.lock(path, claimTime) {
		return false // the gc hangs, and the container must not wait longer
	}
	d.dropClaim(path)
	return true
}

// SweepClaims removes the claims of killed gc processes, those of one network or, if network is "", all.
func (d *Dir) SweepClaims(network string) error {
	if err := d.guard(attachments); err != nil {
		return fmt.Errorf("sweep claims: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(d.Path, attachments, cmp.Or(network, "*"), "*"+claimSuffix))
	for _, path := range found {
		d.sweepClaim(path)
	}
	return err
}

// sweepClaim removes a claim unless a process holds it.
func (d *Dir) sweepClaim(path string) {
	if d.lock(path, 0) {
		d.dropClaim(path)
	}
}

// CurrentRecord is a record that exists. Record is nil if the file is torn.
type CurrentRecord struct {
	Plugin string
	Record *Record
	Since  time.Time // time at which it was written
}

// InUse is the reason why gc keeps an attachment on which another process works.
const InUse = "an ADD or DEL is working on it"

// errClaimed means that another gc has the claim.
var errClaimed = errors.New("another gc has claimed it")

// Seize is the first step of a gc that removes an attachment. Seize claims the attachment, so
// that ADDs wait, and locks all its records. It passes the current records to judge, which
// returns a reason to keep the attachment, or "". If another process works on the attachment,
// Seize itself returns a reason. If the attachment stays, Seize keeps no claim and no lock.
// Otherwise release ends the claim; the locks end when the records are removed, or with UnlockAll or
// Close. Close also ends the claim.
func (d *Dir) Seize(network string, o owner.Key, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	return d.seize(network, o, patience, judge)
}

// TrySeize is Seize for a caller that can try again later. It does not wait for another gc.
func (d *Dir) TrySeize(network string, o owner.Key, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	return d.seize(network, o, 0, judge)
}

func (d *Dir) seize(network string, o owner.Key, wait time.Duration, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	drop, err := d.claim(network, o, wait)
	if errors.Is(err, errClaimed) {
		return nil, InUse, nil
	}
	if err != nil {
		return nil, "", err
	}
	list, taken, free := d.takeAll(network, o)
	if keepReason = InUse; free {
		keepReason = judge(list)
	}
	if keepReason == "" {
		return drop, "", nil
	}
	for _, path := range taken {
		d.unlock(path)
	}
	drop()
	return nil, keepReason, nil
}

// Current returns the records of one owner, including torn ones.
func (d *Dir) Current(network string, o owner.Key) (list []CurrentRecord) {
	paths, _ := filepath.Glob(d.path(network, o, "*")) // cannot fail: the names were validated
	for _, path := range paths {
		if r, err := d.readFound(path); !durable.IsTemp(path) && (r != nil || err != nil) {
			list = append(list, CurrentRecord{Plugin: filepath.Base(path)[owner.Len+1:], Record: r})
		}
	}
	return list
}

// takeAll locks and reads the records of one owner. If another process uses one of them, free is
// false.
func (d *Dir) takeAll(network string, o owner.Key) (list []CurrentRecord, taken []string, free bool) {
	paths, _ := filepath.Glob(d.path(network, o, "*")) // cannot fail: the names were validated
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		held := d.holds(path)
		if !d.lock(path, 0) {
			return nil, taken, false
		}
		if !held {
			taken = append(taken, path)
		}
		now := versionAt(path)
		d.know(path, now)
		r, err := d.readFound(path)
		if r == nil && err == nil {
			continue // another process has removed it
		}
		list = append(list, CurrentRecord{Plugin: filepath.Base(path)[owner.Len+1:], Record: r, Since: time.Unix(0, now.mtime)})
	}
	return list, taken, true
}
