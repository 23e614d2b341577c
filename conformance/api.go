// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// World gives Go tests what a script has: two attachments, each in its own namespace. Call
// uses the first one.
type World struct{ w *world }

// World makes the attachments. It uses the newest version of the specification.
func (s Suite) World(t *testing.T) *World { return &World{newWorld(t, &s, spec.Current)} }

// Call calls the plugin, as "cni VERB" does in a script.
func (w *World) Call(ctx context.Context, verb spec.Verb) ([]byte, error) {
	return w.w.run(ctx, w.w.places["first"], &request{verb: verb})
}

// Attachment returns the first attachment.
func (w *World) Attachment() *Attachment { return &w.w.places["first"].Attachment }

// Left lists the objects that are on the node now and were not there at the start, one per
// line. The script command "clean" prints the same list.
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

// Close deletes the namespaces. If a test does not call it, the end of the test deletes them.
func (w *World) Close() { w.w.close() }
