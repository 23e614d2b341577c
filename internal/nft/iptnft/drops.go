// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// LegacyDrops returns an error that names what we cannot change: a FORWARD chain of
// iptables-legacy that drops packets of a family among the subnets, or of either family
// when there are none. proc is where procfs is mounted.
func LegacyDrops(proc string, concerned []netip.Prefix) error {
	tables, err := LegacyTables(proc)
	if err != nil {
		return err
	}
	var programs []string
	for _, family := range [...]struct {
		table, program string
		v6             bool
	}{{"ip filter", "iptables-legacy", false}, {"ip6 filter", "ip6tables-legacy", true}} {
		hit := func(p netip.Prefix) bool { return p.Addr().Is6() == family.v6 }
		if !slices.Contains(tables, family.table) || len(concerned) > 0 && !slices.ContainsFunc(concerned, hit) {
			continue
		}
		drops, err := LegacyForwardDrops(family.v6)
		if err != nil {
			return err
		}
		if drops {
			programs = append(programs, family.program)
		}
	}
	if len(programs) == 0 {
		return nil
	}
	return fmt.Errorf("chain FORWARD of %s drops packets, which nothing in nftables can change: containers may have no network; "+
		"accept their subnets there (-I FORWARD -s SUBNET -j ACCEPT, and -d SUBNET), or move the rules to iptables-nft",
		strings.Join(programs, " and "))
}
