// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// changed repeats ADD with another configuration. The values that the second ADD finds are those of the first, so a plugin
// that takes them for the original ones leaves them behind at DEL.
func (c *Case) changed(t *testing.T, inv invoke.Invoker) {
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	for _, call := range []struct {
		verb spec.Verb
		conf string
	}{{spec.Add, ""}, {spec.Add, "conf=second"}, {spec.Check, "conf=second"}, {spec.Del, "conf=second"}} {
		if _, err := w.Call(t.Context(), call.verb, strings.Fields(call.conf)...); err != nil {
			t.Fatalf("%s %s: %v", call.verb, call.conf, err)
		}
	}
	if left := w.Left(); left != "" {
		t.Errorf("two ADDs of different configurations, and then DEL, left:\n%s", left)
	}
}
