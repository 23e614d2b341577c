// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/owner"
)

// A claim keeps ADDs of an attachment out while `patchbay gc` removes it by names as well
// as by records. gc claims and then looks for records; an ADD writes its record and then
// looks for a claim. So one of them sees the other: gc skips the attachment, or the ADD
// waits until gc is done and writes its record again. Locks of records are not enough:
// they go with the records, while gc is still at work.

// claimSuffix makes Scan skip a claim as a temporary file (durable.IsTemp).
const claimSuffix = ".gc~"

// claimTime is how long an ADD waits for a running gc: longer than the DELs of one
// attachment take. The claim of a killed gc is free at once.
const claimTime = 30 * time.Second

func (s *Store) claimPath(network string, o owner.Key) string {
	return filepath.Join(s.Dir, attachments, network, string(o)+claimSuffix)
}

// Claim makes ADDs of an attachment wait until release is called.
func (s *Store) Claim(network string, o owner.Key) (release func(), err error) {
	if err := s.guard(attachments, network); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	path := s.claimPath(network, o)
	if !s.lock(path, patience) {
		return nil, fmt.Errorf("claim attachment: %s: %w", path, errClaimed)
	}
	if err := s.place(path, nil); err != nil {
		return nil, fmt.Errorf("claim attachment: %w", err)
	}
	return func() { s.dropClaim(path) }, nil
}

func (s *Store) dropClaim(path string) {
	_ = durable.Remove(path) // a remaining claim is free; the next ADD or gc removes it
	s.unlock(path)
	removeEmpty(filepath.Dir(path))
}

// yield waits for a gc that has claimed an attachment, and reports whether there was one.
func (s *Store) yield(network string, o owner.Key) bool {
	path := s.claimPath(network, o)
	if s.holds(path) || errors.Is(unix.Access(path, unix.F_OK), unix.ENOENT) {
		return false
	}
	if !s.lock(path, claimTime) {
		return false // the gc hangs; the container must not wait for it
	}
	s.dropClaim(path)
	return true
}

// SweepClaims removes the claims of killed gcs.
func (s *Store) SweepClaims() error {
	if err := s.guard(attachments); err != nil {
		return fmt.Errorf("sweep claims: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(s.Dir, attachments, "*", "*"+claimSuffix))
	for _, path := range found {
		if s.lock(path, 0) {
			s.dropClaim(path)
		}
	}
	return err
}

// CurrentRecord is a record that exists; Record is nil when it is torn.
type CurrentRecord struct {
	Plugin string
	Record *Record
	Since  time.Time // when it was written
}

// InUse is the reason to keep an attachment that another process works on.
const InUse = "an ADD or DEL is working on it"

// errClaimed is wrapped when another gc has the claim.
var errClaimed = errors.New("another gc has claimed it")

// Seize is the first step of every gc that removes an attachment: it keeps ADDs out and
// locks all records. judge then gets the current records and returns the reason to keep
// the attachment, if any; Seize itself returns one when another process works on the
// attachment. If the attachment stays, Seize holds nothing. Otherwise release ends the
// claim; the locks stay until the records are removed, Unlock or Close.
func (s *Store) Seize(network string, o owner.Key, judge func([]CurrentRecord) (keepReason string)) (release func(), keepReason string, err error) {
	drop, err := s.Claim(network, o)
	if errors.Is(err, errClaimed) {
		return nil, InUse, nil
	}
	if err != nil {
		return nil, "", err
	}
	list, taken, free := s.takeAll(network, o)
	if keepReason = InUse; free {
		keepReason = judge(list)
	}
	if keepReason == "" {
		return drop, "", nil
	}
	for _, path := range taken {
		s.unlock(path)
	}
	drop()
	return nil, keepReason, nil
}

// Current returns the records of one owner, torn ones included.
func (s *Store) Current(network string, o owner.Key) (list []CurrentRecord) {
	paths, _ := filepath.Glob(s.path(network, o, "*")) // of validated names
	for _, path := range paths {
		if r, err := s.readFound(path); !durable.IsTemp(path) && (r != nil || err != nil) {
			list = append(list, CurrentRecord{Plugin: filepath.Base(path)[owner.Len+1:], Record: r})
		}
	}
	return list
}

// takeAll locks and reads the records of one owner; free is false when one is in use.
func (s *Store) takeAll(network string, o owner.Key) (list []CurrentRecord, taken []string, free bool) {
	paths, _ := filepath.Glob(s.path(network, o, "*")) // of validated names
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		held := s.holds(path)
		if !s.lock(path, 0) {
			return nil, taken, false
		}
		if !held {
			taken = append(taken, path)
		}
		now := versionAt(path)
		s.know(path, now)
		r, err := s.readFound(path)
		if r == nil && err == nil {
			continue // removed meanwhile
		}
		list = append(list, CurrentRecord{Plugin: filepath.Base(path)[owner.Len+1:], Record: r, Since: time.Unix(0, now.mtime)})
	}
	return list, taken, true
}
