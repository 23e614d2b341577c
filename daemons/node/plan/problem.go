// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// Reason is the kind of a problem: the reason of its Event, and a label of the metrics.
type Reason string

// Make finds problems with these reasons.
const (
	NoNode         Reason = "NodeNotFound"
	NoPodCIDR      Reason = "NoPodCIDR"
	BadPodCIDR     Reason = "InvalidPodCIDR"
	OutsideCluster Reason = "PodCIDROutsideCluster"
	Overlap        Reason = "PodCIDROverlaps"
	NoAddress      Reason = "NoInternalIP"
	Withheld       Reason = "NodeLacksFields"
	NoKey          Reason = "NoWireGuardKey"
	BadKey         Reason = "InvalidWireGuardKey"
	DuplicateKey   Reason = "WireGuardKeyOfAnotherNode"
)

// Problem is something wrong with Nodes. It says what to do.
type Problem struct {
	Reason Reason
	Nodes  []string // the names of those that it concerns
	Text   string
}

// Concerns reports whether the problem is about a Node. The agent of that Node reports it there.
func (p *Problem) Concerns(node string) bool { return slices.Contains(p.Nodes, node) }
