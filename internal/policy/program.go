// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// Program is what one node enforces. Every list is sorted, so equal programs print equally.
type Program struct {
	Node       []netip.Addr // the node's own addresses
	Identities []Identity   // what the numbers mean, for people
	Addresses  []Address
	Sets       []Set
	RangeSets  []RangeSet
	Chains     []Chain
	Pods       []LocalPod
	Problems   []Problem
}

// Number is an identity's number: a hash of its text, never 0. If two texts have the same hash,
// the one that sorts later takes the next free number.
type Number uint32

// Identity is a number with its meaning: a namespace, those labels of its pods that some policy
// uses there, and the named ports that some policy uses.
type Identity struct {
	Number    Number
	Namespace string
	Labels    Labels
	Ports     []Port
}

// Address is a pod's address.
type Address struct {
	Addr     netip.Addr
	Identity Number
}

// Set is the identities that a selector matches. Its name is the selector.
type Set struct {
	Name    string
	Members []Number
}

// RangeSet is ranges of addresses that do not overlap. Its name is the ipBlocks, whose ranges never
// change, or a selector of nodes.
type RangeSet struct {
	Name   string
	Ranges []Range
}

// Direction is a direction of traffic, seen from the pod that a policy selects.
type Direction uint8

// These are the directions.
const (
	Ingress Direction = iota
	Egress
)

// String returns "ingress" or "egress".
func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

func (d Direction) apiName() string { return [...]string{"Ingress", "Egress"}[d] }

// Tier orders policies. In the tiers Admin and Baseline the first rule that matches decides, in
// the order of priorities. Pass there means: go on with the next tier. In the tier Namespaced,
// which has the NetworkPolicies, the order does not matter, because rules only allow. If a pod is
// isolated, this tier is the last: what it does not allow is denied. What no tier decides is
// allowed.
type Tier uint8

// These are the tiers in their order.
const (
	Admin Tier = iota
	Namespaced
	Baseline
)

// Verdict is the effect of a rule or a decision.
type Verdict uint8

// These are the verdicts. A decision is never Pass.
const (
	Accept Verdict = iota
	Deny
	Pass
)

// String returns "accept", "deny" or "pass".
func (v Verdict) String() string { return [...]string{"accept", "deny", "pass"}[v] }

// Chain is the rules of one policy in one direction. If the policy uses names of ports for
// ingress, there is a chain for each set of numbers that the names have in pods of this node.
type Chain struct {
	Name      string
	Policy    string // "shop/web", or without a slash the name of a cluster's policy
	Tier      Tier
	Direction Direction
	Rules     []Rule
}

// Rule matches packets by the other end and by port. An empty Set or RangeSet does not look at the
// other end; if a rule has both, both must match. No Ports are all traffic.
type Rule struct {
	Source   string // "ingress[0]", in the policy
	Verdict  Verdict
	Set      string
	RangeSet string
	Ports    []Ports
}

// LocalPod is a pod of this node for which policies are enforced.
type LocalPod struct {
	Name      string // namespace/name
	Addresses []netip.Addr
	Sides     [2]Side // by Direction
}

// Side is what is enforced in one direction: the chains in their order, then deny if the pod is
// isolated. The chains of the tier Baseline are asked only if it is not.
type Side struct {
	Isolated bool
	Unknown  bool // isolated because a policy may select the pod, whose labels are not known
	Chains   []string
}

// Problem says what was not understood, and what the program does instead. Object is the object's kind and name,
// such as "networkpolicy shop/web".
type Problem struct{ Object, Text string }

// These are the kinds of policies in a Problem.
const (
	KindNetworkPolicy        = "networkpolicy"
	KindClusterNetworkPolicy = "clusternetworkpolicy"
)

// String returns "object: text".
func (p Problem) String() string { return p.Object + ": " + p.Text }

// String returns eight hexadecimal digits.
func (n Number) String() string { return fmt.Sprintf("%08x", uint32(n)) }

// identity returns the number of an address; 0 is not a pod's address.
func (p *Program) identity(a netip.Addr) Number {
	i, ok := slices.BinarySearchFunc(p.Addresses, a, func(e Address, a netip.Addr) int { return e.Addr.Compare(a) })
	if !ok {
		return 0
	}
	return p.Addresses[i].Identity
}

// named finds an object by its name in a sorted list.
func named[T any](list []T, name string, of func(*T) string) *T {
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := (lo + hi) / 2; of(&list[mid]) < name {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && of(&list[lo]) == name {
		return &list[lo]
	}
	return nil
}

func (p *Program) set(name string) *Set {
	return named(p.Sets, name, func(s *Set) string { return s.Name })
}

func (p *Program) rangeSet(name string) *RangeSet {
	return named(p.RangeSets, name, func(b *RangeSet) string { return b.Name })
}

func (p *Program) chain(name string) *Chain {
	return named(p.Chains, name, func(c *Chain) string { return c.Name })
}
