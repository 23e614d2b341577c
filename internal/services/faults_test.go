// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Each harm to the table of a program is found, and only it.
func TestFaults(t *testing.T) {
	f := Frontend{netip.MustParseAddr(webIP), 6, 80}
	lb := Frontend{netip.MustParseAddr(webLB), 6, 80}
	slot := func(n uint16) Element {
		e := f.in(Many, 4)
		e.Slot = n
		return e
	}
	for name, c := range map[string]struct {
		harm func(Table)
		want string
	}{
		"none":                        {func(Table) {}, ""},
		"a slot of the last draw":     {func(t Table) { delete(t, slot(2)) }, fmt.Sprint(MissingSlots, " ", f)},
		"all slots":                   {func(t Table) { delete(t, slot(0)); delete(t, slot(1)); delete(t, slot(2)) }, fmt.Sprint(MissingSlots, " ", f)},
		"the class":                   {func(t Table) { delete(t, f.in(Class, 4)) }, fmt.Sprint(Undrawn, " ", f, ", ", Undecided, " ", f)},
		"a second way":                {func(t Table) { t[f.in(One, 0)] = netip.MustParseAddrPort("10.1.0.1:80") }, fmt.Sprint(Ambiguous, " ", f)},
		"no outcome":                  {func(t Table) { t[Frontend{f.Addr, 6, 81}.in(Sticky, 60)] = netip.AddrPort{} }, fmt.Sprint(Undecided, " ", Frontend{f.Addr, 6, 81})},
		"not looked for":              {func(t Table) { delete(t, address(VIP, f.Addr)) }, fmt.Sprint(Invisible, " ", f)},
		"ranges that nobody can read": {func(t Table) { t[lb.in(Ranged, 0)] = netip.AddrPort{} }, fmt.Sprint(ClosedToAll, " ", lb)},
		"no ServiceCIDR": {func(t Table) { delete(t, Element{Set: CIDR, Range: netip.MustParsePrefix("10.96.0.0/16")}) },
			fmt.Sprint(OutsideCIDRs, " ", Frontend{Addr: f.Addr})},
		"node ports at no address": {func(t Table) { delete(t, address(NodeAddress, netip.MustParseAddr(theNode))) }, fmt.Sprint(NoNodeAddress, " ", Frontend{Addr: anyAddress(false)})},
	} {
		table := Compile(world(t, "10.244.1.1@n1, 10.244.1.2@n1, 10.244.2.1@n2"), nil).Table()
		c.harm(table)
		var got []string
		for _, fault := range table.Faults() {
			got = append(got, fmt.Sprint(fault.Kind, " ", fault.Frontend))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
