// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/follow"
)

// Passed reports whether FORWARD of the filter tables lets the traffic of all sources through,
// by any program's rules: an operator's serve as well as ours. It lists the tables, so call
// it only where rules of ours are missing.
func Passed(c *nft.Conn, sources []Source) (worst follow.Answer, err error) {
	for _, family := range families() {
		theirs := ofFamily(sources, family)
		if len(theirs) == 0 {
			continue
		}
		t, err := c.ReadTable(family, tableFilter)
		if err != nil {
			return follow.No, err
		}
		if t != nil && !t.Dormant {
			worst = max(worst, passed(t, theirs))
		}
	}
	return worst, nil
}

func passed(t *nft.Table, sources []Source) (worst follow.Answer) {
	for _, base := range t.Chains {
		if !base.Base || base.Hook != *nftables.ChainHookForward {
			continue
		}
		for _, s := range sources {
			worst = max(worst, follow.Passed(t, base, s.Subnet, s.Bridge))
		}
	}
	return worst
}
