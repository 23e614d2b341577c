// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// programs are those of all nodes of a cluster.
type programs []*policy.Program

// Load compiles a program for each node, from the objects as the API serves them.
func (ps *programs) Load(c policytest.Cluster) error {
	var s policy.State
	for _, err := range []error{
		parse(c.Nodes, policy.ParseNode, &s.Nodes), parse(c.Namespaces, policy.ParseNamespace, &s.Namespaces), parse(c.Pods, policy.ParsePod, &s.Pods),
		parse(c.Policies, policy.ParseNetworkPolicy, &s.Policies), parse(c.ClusterPolicies, parseBroken, &s.ClusterPolicies),
	} {
		if err != nil {
			return err
		}
	}
	*ps = nil
	for _, n := range s.Nodes {
		of := s
		of.Node = n.Name
		*ps = append(*ps, policy.Compile(&of))
	}
	return nil
}

func parse[A, T any](objects []A, read func([]byte) (T, error), into *[]T) error {
	for _, o := range objects {
		text, err := policytest.JSON(o)
		if err != nil {
			return err
		}
		parsed, err := read(text)
		if err != nil {
			return err
		}
		*into = append(*into, parsed)
	}
	return nil
}

// parseBroken reads a policy that may be broken, as the generator makes some.
func parseBroken(text []byte) (policy.ClusterNetworkPolicy, error) {
	p, err := policy.ParseClusterNetworkPolicy(text)
	if p.Broken != "" {
		err = nil
	}
	return p, err
}

// Allows asks the nodes of both ends.
func (ps *programs) Allows(p policytest.Probe) (allowed bool, by string, err error) {
	proto, port := packetOf(p)
	for _, program := range *ps {
		if v, _ := program.Allows(p.From, p.To, proto, port); v == policy.Deny {
			return false, "", nil
		}
	}
	return true, "", nil
}

// packetOf returns the protocol and the port of a probe. ICMP is an echo request.
func packetOf(p policytest.Probe) (l4.Protocol, uint16) {
	switch {
	case p.Protocol == api.ProtocolTCP:
		return l4.TCP, uint16(p.Port)
	case p.Protocol == api.ProtocolUDP:
		return l4.UDP, uint16(p.Port)
	case p.Protocol == api.ProtocolSCTP:
		return l4.SCTP, uint16(p.Port)
	case p.From.Is4():
		return l4.ICMP, 8
	}
	return l4.ICMPv6, 128
}
