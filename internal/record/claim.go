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
	"github.com/patchbay-net/patchbay/internal/owner"
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
