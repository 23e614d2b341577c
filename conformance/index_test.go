// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// A plugin that names an interface which its result does not have is found, and does not stop the suite.
func TestInterfaceIndexOutOfRange(t *testing.T) {
	for _, index := range []int{7, 1, -1} {
		ip := spec.IPConfig{Interface: &index, Address: netip.MustParsePrefix("10.0.0.5/24")}
		r := &spec.Result{Interfaces: []spec.Interface{{Name: "eth0", Sandbox: "/run/netns/x"}}, IPs: []spec.IPConfig{ip}}
		if err := hasAddress(r, ip); err == nil || !strings.Contains(err.Error(), "the result has no interface") {
			t.Errorf("index %d: %v", index, err)
		}
	}
}
