// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

func (g *Generator) addPolicy() {
	namespace := g.namespace()
	name := freeName("policy", func(name string) bool {
		return slices.ContainsFunc(g.Policies, func(np api.NetworkPolicy) bool { return np.Namespace == namespace && np.Name == name })
	})
	g.Policies = append(g.Policies, api.NetworkPolicy{
		ObjectMeta: api.ObjectMeta{Name: name, Namespace: namespace}, Spec: g.policySpec(),
	})
}

func (g *Generator) policySpec() api.NetworkPolicySpec {
	const in, out = api.PolicyTypeIngress, api.PolicyTypeEgress
	spec := api.NetworkPolicySpec{
		PodSelector: *g.selector(),
		PolicyTypes: pick(g, nil, nil, []api.PolicyType{in}, []api.PolicyType{out}, []api.PolicyType{in, out}, []api.PolicyType{out, in}),
	}
	for range g.IntN(4) {
		spec.Ingress = append(spec.Ingress, api.NetworkPolicyIngressRule{From: g.peers(), Ports: g.rulePorts()})
	}
	for range g.IntN(4) {
		spec.Egress = append(spec.Egress, api.NetworkPolicyEgressRule{To: g.peers(), Ports: g.rulePorts()})
	}
	return spec
}

// several draws a list, which is empty in some percent of the cases.
func several[T any](g *Generator, empty, most int, draw func() T) []T {
	if g.chance(empty) {
		return pick(g, nil, []T{})
	}
	var list []T
	for range 1 + g.IntN(most) {
		list = append(list, draw())
	}
	return list
}

func (g *Generator) peers() []api.NetworkPolicyPeer { return several(g, 20, 3, g.peer) }

func (g *Generator) peer() api.NetworkPolicyPeer {
	switch n := g.IntN(100); {
	case n < 35:
		return api.NetworkPolicyPeer{IPBlock: g.ipBlock()}
	case n < 60:
		return api.NetworkPolicyPeer{PodSelector: g.selector()}
	case n < 80:
		return api.NetworkPolicyPeer{NamespaceSelector: g.namespaceSelector()}
	default:
		return api.NetworkPolicyPeer{NamespaceSelector: g.namespaceSelector(), PodSelector: g.selector()}
	}
}

func (g *Generator) namespaceSelector() *api.LabelSelector {
	if g.chance(20) {
		return &api.LabelSelector{MatchLabels: map[string]string{api.LabelMetadataName: g.namespace()}}
	}
	return g.selector()
}

func (g *Generator) selector() *api.LabelSelector {
	s := &api.LabelSelector{}
	switch n := g.IntN(100); {
	case n < 25:
	case n < 55:
		s.MatchLabels = map[string]string{pick(g, "app", "tier"): pick(g, "x", "y")}
	case n < 90:
		s.MatchExpressions = []api.LabelSelectorRequirement{g.expression()}
	default:
		s.MatchLabels = map[string]string{"app": pick(g, "x", "y")}
		s.MatchExpressions = []api.LabelSelectorRequirement{g.expression(), g.expression()}
	}
	return s
}

func (g *Generator) expression() api.LabelSelectorRequirement {
	e := api.LabelSelectorRequirement{Key: pick(g, "app", "tier"), Operator: pick(g,
		api.LabelSelectorOpIn, api.LabelSelectorOpNotIn, api.LabelSelectorOpExists, api.LabelSelectorOpDoesNotExist)}
	if e.Operator == api.LabelSelectorOpIn || e.Operator == api.LabelSelectorOpNotIn {
		e.Values = pick(g, []string{"x"}, []string{"y"}, []string{"z", "x"}, []string{"x", "y"})
	}
	return e
}

func (g *Generator) rulePorts() []api.NetworkPolicyPort {
	return several(g, 45, 3, g.rulePort)
}

func (g *Generator) rulePort() api.NetworkPolicyPort {
	port := api.NetworkPolicyPort{}
	if g.chance(65) {
		protocol := pick(g, api.ProtocolTCP, api.ProtocolUDP, api.ProtocolSCTP)
		port.Protocol = &protocol
	}
	switch n := g.IntN(100); {
	case n < 15:
	case n < 45:
		name := api.IntOrString{StrVal: g.portName()}
		port.Port = &name
	default:
		number := api.IntOrString{IntVal: g.port()}
		port.Port = &number
		if g.chance(40) {
			end := number.IntVal + g.Int32N(3)
			port.EndPort = &end
		}
	}
	return port
}

// ipBlock draws a prefix around an address of the cluster, or around one outside. An except may lie
// in another.
func (g *Generator) ipBlock() *api.IPBlock {
	prefix := g.prefixOf(g.anyAddress(), 0)
	block := &api.IPBlock{CIDR: prefix.String()}
	if g.chance(85) {
		block.CIDR = prefix.Masked().String()
	}
	if g.chance(50) {
		return block
	}
	for range 1 + g.IntN(3) {
		if addr := g.anyAddress(); prefix.Contains(addr) && !prefix.IsSingleIP() {
			block.Except = append(block.Except, g.prefixOf(addr, prefix.Bits()+1).Masked().String())
		}
	}
	return block
}

// prefixOf returns a prefix of at least so many bits that contains the address.
func (g *Generator) prefixOf(addr netip.Addr, least int) netip.Prefix {
	bits := pick(g, 0, 8, 24, 29, 30, 31, 32)
	if addr.Is6() {
		bits = pick(g, 0, 16, 64, 120, 125, 126, 127, 128)
	}
	return netip.PrefixFrom(addr, max(bits, least))
}

func (g *Generator) anyAddress() netip.Addr { return pick(g, g.Addresses()...) }
