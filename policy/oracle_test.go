// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"sort"
)

// oracle decides as the API's texts say, packet by packet, without identities, sets and chains.
// It only knows policies that are not broken.
func (s *State) oracle(from, to netip.Addr, proto Protocol, port uint16) bool {
	src, dst := s.owner(from), s.owner(to)
	if from == to || src != nil && src == dst {
		return true
	}
	if src != nil && src.Node == s.Node && !s.side(src, Egress, dst, to, dst, proto, port) {
		return false
	}
	if dst == nil || dst.Node != s.Node || slices.Contains(s.Nodes[0].Addresses, from) {
		return true
	}
	return s.side(dst, Ingress, src, from, dst, proto, port)
}

// owner returns the pod that has an address.
func (s *State) owner(a netip.Addr) (best *Pod) {
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.HostNetwork || p.Phase != "Running" || !slices.Contains(p.Addresses, a) {
			continue
		}
		if best == nil || best.Leaving && !p.Leaving || best.Leaving == p.Leaving && p.Created.After(best.Created) {
			best = p
		}
	}
	return best
}

// side asks all policies for one pod. other is the pod at the other end, if it is one.
func (s *State) side(p *Pod, d Direction, other *Pod, addr netip.Addr, dst *Pod, proto Protocol, port uint16) bool {
	switch s.tier("Admin", p, d, other, addr, dst, proto, port) {
	case "Accept":
		return true
	case "Deny":
		return false
	}
	isolated := false
	for _, np := range s.Policies {
		if np.Namespace != p.Namespace || !np.Spec.PodSelector.Matches(p.Labels) {
			continue
		}
		types := np.Spec.PolicyTypes
		if len(types) == 0 {
			types = []string{"Ingress"}
			if len(np.Spec.Egress) > 0 {
				types = append(types, "Egress")
			}
		}
		if !slices.Contains(types, [...]string{"Ingress", "Egress"}[d]) {
			continue
		}
		isolated = true
		rules := np.Spec.Egress
		if d == Ingress {
			rules = nil
			for _, r := range np.Spec.Ingress {
				rules = append(rules, EgressRule{r.Ports, r.From})
			}
		}
		for _, r := range rules {
			if s.peers(np.Namespace, r.To, other, addr) && oraclePorts(r.Ports, dst, proto, port) {
				return true
			}
		}
	}
	if isolated {
		return false
	}
	return s.tier("Baseline", p, d, other, addr, dst, proto, port) != "Deny"
}

func (s *State) peers(ns string, peers []Peer, other *Pod, addr netip.Addr) bool {
	for _, p := range peers {
		if p.IPBlock != nil {
			in := netip.MustParsePrefix(p.IPBlock.CIDR).Contains(addr)
			for _, e := range p.IPBlock.Except {
				in = in && !netip.MustParsePrefix(e).Contains(addr)
			}
			if in {
				return true
			}
			continue
		}
		if other == nil || p.NamespaceSelector == nil && other.Namespace != ns {
			continue
		}
		if p.NamespaceSelector != nil && !p.NamespaceSelector.Matches(s.labels(other.Namespace)) {
			continue
		}
		if p.PodSelector == nil || p.PodSelector.Matches(other.Labels) {
			return true
		}
	}
	return len(peers) == 0
}

func (s *State) labels(ns string) Labels {
	for _, n := range s.Namespaces {
		if n.Name == ns {
			return n.Labels
		}
	}
	return nil
}

func oraclePorts(ports []RulePort, dst *Pod, proto Protocol, port uint16) bool {
	for _, p := range ports {
		want, _ := protocol(p.Protocol)
		switch {
		case want != proto:
		case p.Port == nil:
			return true
		case p.Port.Name != "":
			if dst != nil && slices.Contains(dst.Ports, Port{p.Port.Name, proto, port}) {
				return true
			}
		case p.EndPort == nil && int(port) == int(p.Port.Number):
			return true
		case p.EndPort != nil && int(port) >= int(p.Port.Number) && int(port) <= int(*p.EndPort):
			return true
		}
	}
	return len(ports) == 0
}

// tier asks the cluster's policies of one tier.
func (s *State) tier(tier string, p *Pod, d Direction, other *Pod, addr netip.Addr, dst *Pod, proto Protocol, port uint16) string {
	list := slices.Clone(s.ClusterPolicies)
	sort.Slice(list, func(i, j int) bool { return list[i].Spec.Priority < list[j].Spec.Priority })
	for _, c := range list {
		if c.Spec.Tier != tier || !s.inPeer(c.Spec.Subject, p) {
			continue
		}
		rules := c.Spec.Egress
		if d == Ingress {
			rules = nil
			for _, r := range c.Spec.Ingress {
				var to []ClusterEgressPeer
				for _, f := range r.From {
					to = append(to, ClusterEgressPeer{PodPeer: f})
				}
				rules = append(rules, ClusterEgressRule{r.Name, r.Action, to, r.Protocols})
			}
		}
		for _, r := range rules {
			if s.clusterPeers(r.To, other, addr) && clusterPorts(r.Protocols, dst, proto, port) {
				return r.Action
			}
		}
	}
	return "Pass"
}

func (s *State) inPeer(p PodPeer, pod *Pod) bool {
	if pod == nil {
		return false
	}
	if p.Namespaces != nil {
		return p.Namespaces.Matches(s.labels(pod.Namespace))
	}
	return p.Pods.NamespaceSelector.Matches(s.labels(pod.Namespace)) && p.Pods.PodSelector.Matches(pod.Labels)
}

func (s *State) clusterPeers(peers []ClusterEgressPeer, other *Pod, addr netip.Addr) bool {
	for _, p := range peers {
		switch {
		case p.Nodes != nil:
			for _, n := range s.Nodes {
				if p.Nodes.Matches(n.Labels) && slices.Contains(n.Addresses, addr) {
					return true
				}
			}
		case p.Networks != nil:
			for _, cidr := range p.Networks {
				if netip.MustParsePrefix(cidr).Contains(addr) {
					return true
				}
			}
		case s.inPeer(p.PodPeer, other):
			return true
		}
	}
	return false
}

func clusterPorts(list []ClusterProtocol, dst *Pod, proto Protocol, port uint16) bool {
	for _, p := range list {
		for i, d := range []*DestinationPort{p.TCP, p.UDP, p.SCTP} {
			if d == nil || [...]Protocol{TCP, UDP, SCTP}[i] != proto {
				continue
			}
			if d.DestinationPort == nil || d.DestinationPort.Number == int32(port) ||
				d.DestinationPort.Range != nil && d.DestinationPort.Range.Start <= int32(port) && int32(port) <= d.DestinationPort.Range.End {
				return true
			}
		}
		if p.NamedPort != "" && dst != nil && slices.Contains(dst.Ports, Port{p.NamedPort, proto, port}) {
			return true
		}
	}
	return len(list) == 0
}
