// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Problems holds the current errors, by subject. It logs an error when the error appears, changes
// or ends, but not each time the agent finds it again.
type Problems struct {
	Log func(format string, args ...any)

	mu  sync.Mutex
	now map[string]Failure
	n   int // number of changes
}

// Set sets the error of a subject. A nil error means that the subject has none.
func (s *Problems) Set(subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.now[subject]
	if !last.Changed(err) {
		return
	}
	s.n++
	if err == nil {
		delete(s.now, subject)
		s.Log("%s: resolved", subject)
		return
	}
	if s.now == nil {
		s.now = map[string]Failure{}
	}
	s.now[subject] = last
	s.Log("%s: %v", subject, err)
}

// SetAll sets the errors of all subjects of one kind.
func (s *Problems) SetAll(kind string, wrong map[string]error) {
	for name, err := range wrong {
		s.Set(kind+" "+name, err)
	}
	for _, subject := range s.subjects() {
		if name, ok := strings.CutPrefix(subject, kind+" "); ok && wrong[name] == nil {
			s.Set(subject, nil)
		}
	}
}

func (s *Problems) subjects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.now))
}

// Changes returns how often the errors have changed.
func (s *Problems) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// All returns the current errors.
func (s *Problems) All() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subject := range slices.Sorted(maps.Keys(s.now)) {
		out = append(out, subject+": "+s.now[subject].String())
	}
	return out
}
