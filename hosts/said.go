// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/internal/once"
)

// said is what is wrong, by what it is about. It is logged once, not each time
// that it is found again.
type said struct {
	log func(format string, args ...any)

	mu  sync.Mutex
	now map[string]once.Failure
	n   int // how often it changed
}

// tell sets what is wrong with something; nil when nothing is.
func (s *said) tell(about string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.now[about]
	if !last.News(err) {
		return
	}
	s.n++
	if err == nil {
		delete(s.now, about)
		s.log("%s: well again", about)
		return
	}
	if s.now == nil {
		s.now = map[string]once.Failure{}
	}
	s.now[about] = last
	s.log("%s: %v", about, err)
}

// tellAll sets what is wrong with all things of a kind.
func (s *said) tellAll(kind string, wrong map[string]error) {
	for name, err := range wrong {
		s.tell(kind+" "+name, err)
	}
	for _, about := range s.abouts() {
		if name, ok := strings.CutPrefix(about, kind+" "); ok && wrong[name] == nil {
			s.tell(about, nil)
		}
	}
}

func (s *said) abouts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.now))
}

// changes is how often anything changed.
func (s *said) changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// all is what is wrong now.
func (s *said) all() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, about := range slices.Sorted(maps.Keys(s.now)) {
		out = append(out, about+": "+s.now[about].String())
	}
	return out
}
