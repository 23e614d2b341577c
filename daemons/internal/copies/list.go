// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package copies

import (
	"fmt"
	"iter"
)

// Each calls add with each object of a list. It ends at the first error, of the list or of add, and says after how many objects.
func Each(list iter.Seq2[[]byte, error], add func(object []byte) error) error {
	n := 0
	for object, err := range list {
		if err == nil {
			err = add(object)
		}
		if err != nil {
			return fmt.Errorf("read the list of all, after %d: %w", n, err)
		}
		n++
	}
	return nil
}

// Single is how objects are kept that are read and stored one by one. N names an object of a kind, and I is what was read of one.
type Single[K any, N comparable, I any] struct {
	Name   func(namespace, name string) N
	Read   func(k K, object []byte) (N, I, error) // an error means that it is not known which object it is
	Put    func(k K, name N, object I) (changed bool)
	Remove func(k K, name N) (changed bool)
	Names  func(k K) []N // of all that are kept
}

// Reader returns what reads such objects.
func (s Single[K, N, I]) Reader() Reader[K] {
	return Reader[K]{One: s.one, All: s.all, Remove: func(k K, namespace, name string) bool { return s.Remove(k, s.Name(namespace, name)) }}
}

func (s *Single[K, N, I]) one(k K, object []byte) (Apply, error) {
	name, i, err := s.Read(k, object)
	if err != nil {
		return nil, err
	}
	return func() bool { return s.Put(k, name, i) }, nil
}

// all reads a list. If an object is there twice, the last one counts.
func (s *Single[K, N, I]) all(k K, list iter.Seq2[[]byte, error]) (Apply, error) {
	objects := make(map[N]I)
	err := Each(list, func(object []byte) error {
		name, i, err := s.Read(k, object)
		objects[name] = i
		return err
	})
	return func() bool { return s.replace(k, objects) }, err
}

func (s *Single[K, N, I]) replace(k K, objects map[N]I) (changed bool) {
	for _, name := range s.Names(k) {
		if _, stays := objects[name]; !stays {
			changed = s.Remove(k, name) || changed
		}
	}
	for name, i := range objects {
		changed = s.Put(k, name, i) || changed
	}
	return changed
}
