// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// The error for an endpoint without an interface has a text, and can be recognised on the host
// and in a sandbox.
func TestNoInterface(t *testing.T) {
	const path = "/run/netns/nolink"
	must(t, netns.Create(path))
	t.Cleanup(func() { must(t, netns.Delete(path)) })
	for _, at := range []string{"", path} {
		_, err := find(conn(t, at), &state.Endpoint{ID: strings.Repeat("e1", 32)})
		if !nl.IsNotFound(err) || !strings.Contains(err.Error(), "no interface of endpoint e1e1e1e1e1e1") {
			t.Errorf("%q: %v", at, err)
		}
	}
}
