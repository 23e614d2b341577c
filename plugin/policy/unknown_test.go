// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/spec"
)

// As long as the policies were never known on the node, an ADD closes its pod. What a flush opened is
// closed again. A pod that ran before stays open.
func TestPoliciesAreNotKnown(t *testing.T) {
	n := fresh(t)
	old, _ := routed(t, n, "old", podBank, "10.1.0.3/24")
	old.must(t, spec.Add)
	must(t, mirror.Isolate(paths.Default()))
	t.Cleanup(func() { must(t, mirror.Remove(paths.Default())) })
	a, _ := routed(t, n, "new", podWeb, "10.1.0.2/24")
	a.must(t, spec.Add)
	closedAt(t, "10.1.0.2", true, true)
	if !strings.Contains(a.stderr.String(), "are not known on this node yet") {
		t.Errorf("the ADD says %q", &a.stderr)
	}
	a.must(t, spec.Check)
	nftDo(t, "flush ruleset")
	if err := a.call(t, spec.Check, `{}`); err == nil {
		t.Error("CHECK does not see that the pod is open")
	}
	restoreAll(t)
	old.must(t, spec.Check)
	closedAt(t, "10.1.0.2", true, true)
	closedAt(t, "10.1.0.3", false, false)
	a.del(t)
	old.del(t)
}

// restoreAll does what `patchbay repair` does for the plugin.
func restoreAll(t *testing.T) {
	t.Helper()
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // committed
	for _, id := range []string{"new", "old"} {
		_, err := Restore(t.Context(), paths.Default(), fw, recordOf(t, id))
		must(t, err)
	}
}
