// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func (g *Generator) addPolicy() {
	namespace := g.namespace()
	name := freeName("policy", func(name string) bool {
		return slices.ContainsFunc(g.Policies, func(np networkingv1.NetworkPolicy) bool { return np.Namespace == namespace && np.Name == name })
	})
	g.Policies = append(g.Policies, networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: g.policySpec(),
	})
}

func (g *Generator) policySpec() networkingv1.NetworkPolicySpec {
	const in, out = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	spec := networkingv1.NetworkPolicySpec{
		PodSelector: *g.selector(),
		PolicyTypes: pick(g, nil, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out}, []networkingv1.PolicyType{in, out}, []networkingv1.PolicyType{out, in}),
	}
	for range g.IntN(4) {
		spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.rulePorts()})
	}
	for range g.IntN(4) {
		spec.Egress = append(spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.rulePorts()})
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

func (g *Generator) peers() []networkingv1.NetworkPolicyPeer { return several(g, 20, 3, g.peer) }

func (g *Generator) peer() networkingv1.NetworkPolicyPeer {
	switch n := g.IntN(100); {
	case n < 35:
		return networkingv1.NetworkPolicyPeer{IPBlock: g.ipBlock()}
	case n < 60:
		return networkingv1.NetworkPolicyPeer{PodSelector: g.selector()}
	case n < 80:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: g.namespaceSelector()}
	default:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: g.namespaceSelector(), PodSelector: g.selector()}
	}
}

func (g *Generator) namespaceSelector() *metav1.LabelSelector {
	if g.chance(20) {
		return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.namespace()}}
	}
	return g.selector()
}

func (g *Generator) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	switch n := g.IntN(100); {
	case n < 25:
	case n < 55:
		s.MatchLabels = map[string]string{pick(g, "app", "tier"): pick(g, "x", "y")}
	case n < 90:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{g.expression()}
	default:
		s.MatchLabels = map[string]string{"app": pick(g, "x", "y")}
		s.MatchExpressions = []metav1.LabelSelectorRequirement{g.expression(), g.expression()}
	}
	return s
}

func (g *Generator) expression() metav1.LabelSelectorRequirement {
	e := metav1.LabelSelectorRequirement{Key: pick(g, "app", "tier"), Operator: pick(g,
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
	if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
		e.Values = pick(g, []string{"x"}, []string{"y"}, []string{"z", "x"}, []string{"x", "y"})
	}
	return e
}

func (g *Generator) rulePorts() []networkingv1.NetworkPolicyPort {
	return several(g, 45, 3, g.rulePort)
}

func (g *Generator) rulePort() networkingv1.NetworkPolicyPort {
	port := networkingv1.NetworkPolicyPort{}
	if g.chance(65) {
		protocol := pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		port.Protocol = &protocol
	}
	switch n := g.IntN(100); {
	case n < 15:
	case n < 45:
		name := intstr.FromString(g.portName())
		port.Port = &name
	default:
		number := intstr.FromInt32(g.port())
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
func (g *Generator) ipBlock() *networkingv1.IPBlock {
	prefix := g.prefixOf(g.anyAddress(), 0)
	block := &networkingv1.IPBlock{CIDR: prefix.String()}
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
