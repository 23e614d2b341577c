// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// The kernel's message has 32 bits for a table, and 4294967396 would become the table 100.
func TestTableOfARoute(t *testing.T) {
	for table, refused := range map[int]bool{-1: true, 0: false, 100: false, 1<<32 - 1: false, 1 << 32: true, 1<<32 + 100: true} {
		route := spec.Route{Dst: netip.MustParsePrefix("10.99.0.0/16"), Table: &table}
		err := endpoint.ValidateAnswer(0, &spec.Result{Routes: []spec.Route{route}})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "must be between 0 and 4294967295") {
			t.Errorf("table %d: %v", table, err)
		}
	}
}
