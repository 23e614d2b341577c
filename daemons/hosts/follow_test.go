// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// stuck is a store whose calls block until they are released, whatever their context.
type stuck struct {
	store.Store
	letGo chan struct{}
}

func (s stuck) Networks() store.Table[store.Network] {
	<-s.letGo
	return s.Store.Networks()
}

// After Run has returned, no call is left in the store. So a program may close the store and
// remove its directory.
func TestFollowEndsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{chaos.NewStore().Client(), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		m := &mirror{changed: func() {}}
		go func() {
			m.follow(ctx, s, func(string, error) {})
			ended = true
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if ended {
			t.Error("a call of the store still runs")
		}
		close(s.letGo)
		synctest.Wait()
		if !ended {
			t.Error("the call has ended, and Run still runs")
		}
	})
}
