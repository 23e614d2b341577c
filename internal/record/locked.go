// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// ReadLocked works like Read for a caller that will remove what the record lists. It first locks the
// record. The lock ends when the Dir is closed or the record is removed. If another process holds
// the lock for more than a second, ReadLocked continues without it.
func (d *Dir) ReadLocked(network string, o owner.Key, plugin string) (*Record, error) {
	if d.Guard(claim.Attachments, network) != nil {
		return d.Read(network, o, plugin)
	}
	r, _, err := d.readLocked(d.File(network, o, plugin), claim.Patience)
	return r, err
}

// ReadAllLocked works like ReadLocked for all records of an owner, of any plugin and network. ReadAllLocked
// skips records that cannot be read.
func (d *Dir) ReadAllLocked(o owner.Key) (list []*Record) {
	if !o.Valid() {
		return nil
	}
	paths, _ := filepath.Glob(d.File("*", o, "*")) // cannot fail: o is valid
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		network, plugin := filepath.Base(filepath.Dir(path)), filepath.Base(path)[owner.Len+1:]
		if r, err := d.ReadLocked(network, o, plugin); r != nil && err == nil {
			list = append(list, r)
		}
	}
	return list
}

// readLocked locks and reads a record. If there is no record at first but one appears later, readLocked locks
// again, because the record belongs to a running ADD.
func (d *Dir) readLocked(path string, wait time.Duration) (r *Record, ok bool, err error) {
	ok, missing := d.LockExisting(path, wait)
	if missing {
		d.SetSeenVersion(path, claim.Version{})
		return nil, true, nil
	}
	r, err = d.readVersioned(path)
	if ok && !d.HasLock(path) && (r != nil || err != nil) {
		ok = d.LockFile(path, wait)
		r, err = d.readVersioned(path)
	}
	return r, ok, err
}

// TryReadLocked works like ReadLocked for a caller that can try again later. If another process still has the
// lock after wait, ok is false.
func (d *Dir) TryReadLocked(network string, o owner.Key, plugin string, wait time.Duration) (r *Record, ok bool, err error) {
	if err := d.Guard(claim.Attachments, network); err != nil {
		return nil, true, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	if r, ok, err = d.readLocked(d.File(network, o, plugin), wait); !ok {
		return nil, false, nil
	}
	return r, true, err
}

// CurrentRecord is a record that exists. Record is nil if the file is torn.
type CurrentRecord struct {
	Plugin string
	Record *Record
	Since  time.Time // time at which it was written
}

// Seize works like claim.Dir.Seize, and passes the records themselves to judge.
func (d *Dir) Seize(network string, o owner.Key, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	return d.Dir.Seize(network, o, func(files []claim.File) string { return judge(d.current(files)) })
}

// TrySeize is Seize for a caller that can try again later. It does not wait for another gc.
func (d *Dir) TrySeize(network string, o owner.Key, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	return d.Dir.TrySeize(network, o, func(files []claim.File) string { return judge(d.current(files)) })
}

// Current returns the records of one owner, including torn ones.
func (d *Dir) Current(network string, o owner.Key) []CurrentRecord {
	return d.current(d.Files(network, o))
}

func (d *Dir) current(files []claim.File) (list []CurrentRecord) {
	for _, f := range files {
		if r, err := d.readFound(f.Path); r != nil || err != nil { // otherwise another process has removed it
			list = append(list, CurrentRecord{Plugin: f.Plugin, Record: r, Since: f.Since})
		}
	}
	return list
}
