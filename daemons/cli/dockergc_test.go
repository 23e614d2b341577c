// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"encoding/json"
	"testing"
	"time"
)

// After an upgrade of the program, the driver that runs may still be that of an earlier release. It removes what
// is dead unless Dry is set, and does not know Apply.
func TestGCOfAnEarlierDriver(t *testing.T) {
	for _, apply := range []bool{false, true} {
		c := &dockerCommand{GC: gcFlags{Apply: apply}}
		text, err := json.Marshal(c.collection())
		var earlier struct {
			Grace time.Duration
			Dry   bool
		}
		if err == nil {
			err = json.Unmarshal(text, &earlier)
		}
		if err != nil || earlier.Dry == apply {
			t.Errorf("apply %v: %s, %v", apply, text, err)
		}
	}
}
