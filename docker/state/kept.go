// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"maps"
	"slices"
	"sync"
)

// kept holds decoded objects by kind and id, as they are on the disk; the first list of a
// kind fills it. Then a driver can cheaply search a thousand endpoints for a port.
type kept struct {
	mu  sync.Mutex
	all map[string]map[string]any // nil: nothing is kept
}

// Keep is for the only process that writes here: from now on it reads each list once from
// the disk. Other processes read the directory each time. If another process removes a
// file, this one notices only after a restart.
func (s *Store) Keep() {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	s.kept.all = make(map[string]map[string]any)
}

// put follows a write. It runs after the write, so a list that is read meanwhile has the
// old or the new object, and then the new one.
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

// forget follows a failed write: either object may be on the disk.
func (k *kept) forget(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, kind)
}

// list returns the kept objects of a kind in the order of ids, and reads them the first
// time. An incomplete result of read is not kept.
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
