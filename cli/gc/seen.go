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

// seenFile holds when gc first saw objects that have no age of their own: links, elements
// and rules.
const seenFile = "gc-seen.json"

type seen struct {
	path  string
	first map[owner.Key]time.Time // as read from the file
	now   map[owner.Key]time.Time // as it will be written: without objects that are gone
}

// loadSeen starts with an empty list when the file is missing or broken: then everything
// is seen for the first time.
func loadSeen(runDir string) *seen {
	s := &seen{path: filepath.Join(runDir, seenFile), now: make(map[owner.Key]time.Time)}
	data, err := durable.Read(s.path)
	if err == nil && json.Unmarshal(data, &s.first) != nil {
		s.first = nil
	}
	return s
}

// since is when gc first saw an owner: now, if it is new.
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
