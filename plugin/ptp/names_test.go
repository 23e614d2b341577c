// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// No interface can have these names, so the caller is told before any work.
func TestImpossibleNames(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("names", dual)
	for name, want := range map[string]string{
		"all": "no interface can have it", "default": "no interface can have it", "eth%d": "leave out the %",
		"a b": "whitespace", "..": "interface name is . or ..",
	} {
		p.Call.IfName = name
		err := p.Do(spec.Add)
		w.Fails(err, want)
		if code := spec.ErrorCode(err); code != spec.CodeInvalidEnvironment {
			t.Errorf("%q: code %d: %v", name, code, err)
		}
		if name == "all" || name == "eth%d" {
			endpointtest.Must(t, p.Do(spec.Del))
		}
	}
}
