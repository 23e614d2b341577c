// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// TestPrintedNames checks that no name from another host reaches the terminal as a control
// sequence.
func TestPrintedNames(t *testing.T) {
	l := &Listing{Endpoints: []store.Entry{{ID: "e", Network: "lan", Names: []string{"web\x1b[2J\nspoof"}}}}
	var out bytes.Buffer
	must(t, l.Print(&out))
	if got := out.String(); strings.Contains(got, "\x1b") || !strings.Contains(got, `web\x1b[2J\nspoof`) {
		t.Errorf("%q", got)
	}
}

// Empty tables alone would not say that no agent has run.
func TestNobodyIsSaid(t *testing.T) {
	for said, l := range map[bool]*Listing{true: {}, false: {Nodes: []NodeLine{{}}}} {
		var out strings.Builder
		if err := l.Print(&out); err != nil || strings.Contains(out.String(), "no host is in the store") != said {
			t.Errorf("want it %t: %v\n%s", said, err, &out)
		}
	}
}
