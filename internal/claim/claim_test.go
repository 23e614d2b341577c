// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/owner"
)

// Two gcs never have the same attachment, and neither removes the other's claim.
func TestClaimIsExclusive(t *testing.T) {
	run, network, o := t.TempDir(), "pods", owner.Of("pods", "c1", "eth0")
	var having, claims atomic.Int32
	var all sync.WaitGroup
	soon, late := time.Now().Add(300*time.Millisecond), time.Now().Add(30*time.Second)
	for range 4 {
		all.Go(func() {
			for now := time.Now(); now.Before(soon) || claims.Load() < 10 && now.Before(late); now = time.Now() {
				d := &Dir{Path: run}
				if release, err := d.claim(network, o, 0); err == nil {
					claims.Add(1)
					if having.Add(1) > 1 {
						t.Error("two have the claim")
					}
					time.Sleep(100 * time.Microsecond)
					if VersionAt(d.claimPath(network, o)) == (Version{}) {
						t.Error("the file of the claim is gone")
					}
					having.Add(-1)
					release()
				} else if !errors.Is(err, errClaimed) {
					t.Error(err)
				}
				d.Close()
			}
		})
	}
	all.Wait()
	if claims.Load() < 10 {
		t.Errorf("%d claims", claims.Load())
	}
}
