// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"testing"

	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/test/storetest"
)

func open(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Engine {
		dir := t.TempDir()
		return storetest.Engine{
			Open: func() store.Store { return open(t, dir, Options{}) },
			Put: func(table, key string, data []byte) {
				s := open(t, dir, Options{})
				err := s.locked(t.Context(), func() error {
					_, err := s.commit(change{Table: table, Key: key, row: row{Value: data}})
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			},
			Compact: func() { open(t, dir, Options{Keep: 1}) },
		}
	})
}
