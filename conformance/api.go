// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// World is what a script has, for tests that call a plugin from Go: two attachments in
// namespaces of their own, of which Call uses the first.
type World struct{ w *world }

// World makes the attachments at the newest version.
func (s Suite) World(t *testing.T) *World { return &World{newWorld(t, &s, spec.Current)} }

// Call calls the plugin like a script's line "cni VERB".
func (w *World) Call(ctx context.Context, verb spec.Verb) ([]byte, error) {
	return w.w.run(ctx, w.w.places["first"], &request{verb: verb})
}

// Attachment returns the first attachment.
func (w *World) Attachment() *Attachment { return &w.w.places["first"].Attachment }

// Left lists what is on the node that was not there at the start, one line for each object,
// like the command "clean".
func (w *World) Left() string {
	w.w.t.Helper()
	left, err := w.w.settle()
	if err != nil {
		w.w.t.Fatal(err)
	}
	if len(left) == 0 {
		return ""
	}
	return left.String()
}

// Close deletes the namespaces. The end of the test does too.
func (w *World) Close() { w.w.close() }
