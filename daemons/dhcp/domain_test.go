// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/spec"
)

// TestDomains checks that the result leaves out an invalid domain from a server.
func TestDomains(t *testing.T) {
	for domain, want := range map[string]string{
		"example.com": "example.com", "Site_1.corp.": "Site_1.corp.",
		"x\nnameserver 6.6.6.6": "", "a b": "", "a..b": "", ".": "", "é.com": "", strings.Repeat("a", 64): "",
	} {
		g := &client.Lease{DNS: spec.DNS{Domain: domain, Search: []string{domain, "ok.example"}}}
		e := &entry{addrs: []*address{{grant: g}}}
		got, err := e.result()
		if err != nil || got.DNS.Domain != want || slices.Contains(got.DNS.Search, domain) != (want != "") || !slices.Contains(got.DNS.Search, "ok.example") {
			t.Errorf("%q: %+v, %v", domain, got.DNS, err)
		}
	}
}
