// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"testing"
)

// A lookup that fails is no answer: nothing is known to be missing, so CHECK and DEL fail.
func TestLookupThatFails(t *testing.T) {
	env := newEnv(t)
	env.Sandbox.Close()
	if err := DeleteEmptyVRF(env.Sandbox, "red", true); err == nil {
		t.Error("DEL found no VRF without looking")
	}
	for _, o := range []Object{VRF{Name: "red"}, Member{Link: "eth0", VRF: "red"}} {
		if d, err := o.Diff(context.Background(), env); err == nil {
			t.Errorf("%T: CHECK says %q", o, d)
		}
	}
}
