// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"maps"
	"slices"
	"sync"
)

// kept are decoded objects, by kind and id, as they are on the disk; a kind comes
// with its first list. It costs a driver nothing then to look through a thousand
// endpoints for a port.
type kept struct {
	mu  sync.Mutex
	all map[string]map[string]any // nil: nothing is kept
}

// Keep is for the process that alone writes here: from now on lists are read from
// the disk once. Others who open the directory read it anew each time. A file that
// somebody else removes is missed when the process starts again.
func (s *Store) Keep() {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	s.kept.all = make(map[string]map[string]any)
}

// put follows a write. It comes after it, so whoever fills the kind meanwhile has
// either object, and this one in the end.
func (k *kept) put(kind, id string, v any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if of := k.all[kind]; of != nil {
		of[id] = v
	}
}

// drop follows a removal.
func (k *kept) drop(kind, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all[kind], id)
}

// forget is for a write that failed: either object may be on the disk.
func (k *kept) forget(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, kind)
}

// list returns what is kept of a kind in the order of ids, filled by read at
// first. What read cannot read completely is not kept.
func (k *kept) list(kind string, read func() (map[string]any, error)) (out []any, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.all[kind]
	if of == nil {
		if of, err = read(); err == nil && k.all != nil {
			k.all[kind] = of
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		out = append(out, of[id])
	}
	return out, err
}
