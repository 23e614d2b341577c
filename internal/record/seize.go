// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Standing is a record that exists; Record is nil when it is torn.
type Standing struct {
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
func (s *Store) Seize(network string, o owner.Key, judge func([]Standing) (keepReason string)) (release func(), keepReason string, err error) {
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

// Standing returns the records of one owner, torn ones included.
func (s *Store) Standing(network string, o owner.Key) (list []Standing) {
	paths, _ := filepath.Glob(s.path(network, o, "*")) // of validated names
	for _, path := range paths {
		if r, err := s.readFound(path); !durable.IsTemp(path) && (r != nil || err != nil) {
			list = append(list, Standing{Plugin: filepath.Base(path)[owner.Len+1:], Record: r})
		}
	}
	return list
}

// takeAll locks and reads the records of one owner; free is false when one is in use.
func (s *Store) takeAll(network string, o owner.Key) (list []Standing, taken []string, free bool) {
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
		list = append(list, Standing{Plugin: filepath.Base(path)[owner.Len+1:], Record: r, Since: time.Unix(0, now.mtime)})
	}
	return list, taken, true
}
