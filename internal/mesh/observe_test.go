// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A peer without a route does not cut off the host from the others. A kernel without IPv6 answers
// EOPNOTSUPP for an IPv6 address.
func TestNoRoute(t *testing.T) {
	a := netip.MustParseAddr("fd00::1")
	for _, err := range []error{nil, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EOPNOTSUPP} {
		if got := noRoute(a, err); got != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
	if got := noRoute(a, unix.ENOBUFS); !errors.Is(got, unix.ENOBUFS) {
		t.Errorf("an error of another kind: %v", got)
	}
}
