// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/storetest"
)

type place struct{ of *Shared }

func (p place) Open(t testing.TB) store.Store {
	t.Helper()
	l := p.of.Open()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (p place) Put(_ testing.TB, table, key string, data []byte) { p.of.Put(table, key, data) }

func (p place) Compact(testing.TB) { p.of.Compact() }

// A Shared is like an etcd to agents.
func TestContract(t *testing.T) {
	c := storetest.Begin(t, time.Second, func() storetest.Place { return place{NewShared()} })
	c.Run(t)
	t.Run("LeaseIsKept", c.LeaseIsKept)
}
