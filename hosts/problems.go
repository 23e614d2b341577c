// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// problems holds the current errors, by subject. It logs an error when it appears, changes or
// ends, but not each time the agent finds it again.
type problems struct {
	log func(format string, args ...any)

	mu  sync.Mutex
	now map[string]resident.Failure
	n   int // number of changes
}

// set sets the error of a subject. A nil error means that the subject has none.
func (s *problems) set(subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.now[subject]
	if !last.Changed(err) {
		return
	}
	s.n++
	if err == nil {
		delete(s.now, subject)
		s.log("%s: resolved", subject)
		return
	}
	if s.now == nil {
		s.now = map[string]resident.Failure{}
	}
	s.now[subject] = last
	s.log("%s: %v", subject, err)
}

// setAll sets the errors of all subjects of one kind.
func (s *problems) setAll(kind string, wrong map[string]error) {
	for name, err := range wrong {
		s.set(kind+" "+name, err)
	}
	for _, subject := range s.subjects() {
		if name, ok := strings.CutPrefix(subject, kind+" "); ok && wrong[name] == nil {
			s.set(subject, nil)
		}
	}
}

func (s *problems) subjects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.now))
}

// changes returns how often the errors have changed.
func (s *problems) changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// all returns the current errors.
func (s *problems) all() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subject := range slices.Sorted(maps.Keys(s.now)) {
		out = append(out, subject+": "+s.now[subject].String())
	}
	return out
}
