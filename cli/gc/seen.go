// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/owner"
)

// seenFile stores when gc first saw links, elements and rules, which have no date of their own.
const seenFile = "gc-seen.json"

type seen struct {
	path  string
	first map[owner.Key]time.Time // as read from the file
	now   map[owner.Key]time.Time // as it will be written, without objects that are gone
}

// loadSeen reads the file. If the file is missing or broken, it starts with an empty list, and
// gc sees every object for the first time.
func loadSeen(runDir string) *seen {
	s := &seen{path: filepath.Join(runDir, seenFile), now: make(map[owner.Key]time.Time)}
	data, err := durable.Read(s.path)
	if err == nil && json.Unmarshal(data, &s.first) != nil {
		s.first = nil
	}
	return s
}

// since returns when gc first saw an owner. For a new owner that is now.
func (s *seen) since(o owner.Key, now time.Time) time.Time {
	t, ok := s.first[o]
	if !ok || t.After(now) {
		t = now
	}
	s.now[o] = t
	return t
}

func (s *seen) save(runDir string) error {
	if len(s.now) == 0 {
		return durable.Remove(s.path)
	}
	if err := durable.MakeDir(runDir); err != nil {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	data, err := json.Marshal(s.now)
	if err != nil {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	if err := durable.Write(s.path, data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remember what was seen: %w", err)
	}
	return nil
}
