// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/cli/doctor"
)

// checkConfig is the check of doctor that also reports files in which there is no network.
const checkConfig = "config"

// judgesOne reports whether a check of doctor judges each network by itself. Then what it finds with only one
// network is about that network.
func judgesOne(c doctor.Check) bool {
	return slices.Contains([]string{checkConfig, "status", "mtu", "pools"}, c.ID)
}

// examined runs the checks of doctor, each once: the checks that judge each network by itself with one network after
// the other, the others with all networks.
func examined(ctx context.Context, n *doctor.Node) (node []doctor.Finding, of map[string][]doctor.Finding) {
	networks, broken := n.Networks, n.Broken
	var each, together, config []doctor.Check
	for _, c := range doctor.Checks() {
		switch {
		case !judgesOne(c):
			together = append(together, c)
			continue
		case c.ID == checkConfig && (len(broken) > 0 || len(networks) == 0):
			config = append(config, c)
		}
		each = append(each, c)
	}
	of = make(map[string][]doctor.Finding)
	n.Broken = nil
	for _, net := range networks {
		if _, done := of[net.Name]; done {
			continue // two files have this name, and config reported that
		}
		n.Networks = slices.DeleteFunc(slices.Clone(networks), func(o *doctor.Network) bool { return o.Name != net.Name })
		of[net.Name] = doctor.Examine(ctx, n, each).Findings
	}
	n.Networks, n.Broken = nil, broken
	node = doctor.Examine(ctx, n, config).Findings
	n.Networks = networks
	return append(node, doctor.Examine(ctx, n, together).Findings...), of
}
