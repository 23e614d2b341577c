// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package owner

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// The hash must never change: a DEL by a newer program must find what an older program made.
func TestKeyIsPinned(t *testing.T) {
	k := Of("pods", "c1", "eth0")
	if k != "hgtrtectyzic5jv" {
		t.Errorf("owner of pods/c1/eth0 is %s", k)
	}
	if got := k.LinkName("veth", 0); got != "vethedad68ff" {
		t.Errorf("host link of %s is %s", k, got)
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := map[Key]string{}
	for _, parts := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"a", "b", "d"}, {"a-b", "c", "d"}, {"a", "b-c", "d"}} {
		k := Of(parts[0], parts[1], parts[2])
		if !k.Valid() || seen[k] != "" {
			t.Errorf("%v has key %q, as %s", parts, k, seen[k])
		}
		seen[k] = strings.Join(parts[:], "/")
	}
}

func TestAlias(t *testing.T) {
	k := Of("pods", "c1", "eth0")
	if got, ok := FromAlias(k.Alias()); !ok || got != k {
		t.Errorf("FromAlias(%q) = %q, %v", k.Alias(), got, ok)
	}
	for _, alias := range []string{"", "eth0", "patchbay:", "patchbay:../../../etc", "patchbay:SHOUTING1234567"} {
		if k, ok := FromAlias(alias); ok {
			t.Errorf("FromAlias(%q) = %q", alias, k)
		}
	}
}

func TestLinkNames(t *testing.T) {
	k := Of("pods", "c1", "eth0")
	for _, prefix := range []string{"veth", "bwp", "a-longer-pref"} {
		a, b := k.LinkName(prefix, 0), k.LinkName(prefix, 1)
		if a == b || spec.ValidateIfName(a) != nil || !strings.HasPrefix(a, prefix) {
			t.Errorf("LinkName(%q) = %q, then %q", prefix, a, b)
		}
	}
}
