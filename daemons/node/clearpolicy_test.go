// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/record"
)

// An ADD that read the mirror before ClearNetworkPolicy closes its pod later. The pod is open in the
// end.
func TestClearNetworkPolicyDuringAnADD(t *testing.T) {
	l := newPolicyLab(t)
	r := l.added("web-0", webAddr)
	store := record.New(l.dir)
	defer store.Close()
	if _, err := store.ReadLocked(r.Network, r.Owner, r.Plugin); err != nil {
		t.Fatal(err)
	}
	cleared := make(chan error)
	go func() {
		cleared <- ClearNetworkPolicy(t.Context(), paths.Paths{Run: l.dir, State: l.dir, Proc: "/proc"})
	}()
	time.Sleep(3 * clearPause)
	fw := nft.Open(l.dir)
	defer fw.Close() //nolint:errcheck // committed
	// A pass of ClearNetworkPolicy may open the pod before nft has looked.
	l.await("the ADD to close its pod", func() bool {
		enforce.Close(fw, closureOf(r), false)
		must(t, fw.Commit(t.Context()))
		return closed(webAddr)
	})
	store.Unlock(r.Network, r.Owner, r.Plugin)
	must(t, <-cleared)
	if closed(webAddr) {
		t.Error("ClearNetworkPolicy says that no pod is isolated, and one is closed")
	}
}
