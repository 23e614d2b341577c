// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// A disk may hang before each file. ADDs do not wait for it: a pod that policies isolate never starts open, and on a
// node that never knew its policies no pod starts open.
func TestDiskStandsStill(t *testing.T) {
	never := node(t)
	if err := Isolate(never); err != nil {
		t.Fatal(err)
	}
	other := shop()
	other.Policies[0].Name = "another-name"
	for name, p := range map[string]paths.Paths{"never known": never, "other policies": mirrored(t, other)} {
		stops := 0
		if _, err := write(p, policy.NewDecider(shop()), func() {
			stops++
			for _, pod := range []Pod{web, another} { // the disk hangs, and these pods start
				if d, _ := Read(p, pod); !d.Sides[policy.Ingress].Isolated {
					t.Errorf("%s: before change %d, pod %s starts with %+v", name, stops, pod.Name, d)
				}
			}
			if d, _ := Read(p, stranger); !d.Sides[policy.Ingress].Isolated {
				t.Errorf("%s: before change %d, a pod of an unknown namespace starts with %+v", name, stops, d)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if stops < 3 {
			t.Errorf("%s: the disk stood still %d times", name, stops)
		}
	}
}
