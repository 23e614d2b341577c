// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestDepth checks that a call through too many drivers is refused if it creates something, but not
// if it removes something. An invalid depth counts as 0, which is the depth of Docker's calls.
func TestDepth(t *testing.T) {
	h := &Handler{Network: &scripted{answer: "{}"}}
	for _, c := range []struct {
		method, depth string
		refused       bool
	}{
		{"CreateEndpoint", "", false}, {"CreateEndpoint", "nonsense", false}, {"CreateEndpoint", "-1", false}, {"CreateEndpoint", strconv.Itoa(maxDepth), false},
		{"CreateEndpoint", strconv.Itoa(maxDepth + 1), true}, {"CreateNetwork", "9", true},
		{"DeleteEndpoint", "9", false}, {"Leave", "9", false}, {"Join", "9", false},
	} {
		r := httptest.NewRequest("POST", "/NetworkDriver."+c.method, strings.NewReader(`{"NetworkID":"n","EndpointID":"e"}`))
		r.Header.Set(depthHeader, c.depth)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := strings.Contains(w.Body.String(), "call each other"); got != c.refused {
			t.Errorf("%s at %q: %s", c.method, c.depth, w.Body)
		}
	}
}
