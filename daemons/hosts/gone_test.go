// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"
	"time"
)

// A node without a record may be a host that has not written its record again since the store lost its data. An
// agent that began after the loss takes its block only after the time to reclaim.
func TestNodeWithoutRecord(t *testing.T) {
	a := &Agent{opts: Options{Reclaim: time.Hour}, wall: time.Now, began: time.Now()}
	if a.reclaimable(holder{}) {
		t.Error("a new agent takes the block at once")
	}
	if !a.reclaimable(holder{seen: time.Now().Add(-2 * time.Hour)}) || a.reclaimable(holder{seen: time.Now()}) {
		t.Error("of a known node, its last sight counts")
	}
	a.began = a.began.Add(-2 * time.Hour)
	if !a.reclaimable(holder{}) || a.reclaimable(holder{present: true}) || a.reclaimable(holder{lasts: true, lasting: true}) {
		t.Error("after the time to reclaim, what is away is gone")
	}
}
