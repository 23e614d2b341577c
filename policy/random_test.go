// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// random makes states from few values, so that everything meets everything.
type random struct{ *rand.Rand }

func one[T any](r random, list ...T) T { return list[r.IntN(len(list))] }

func (r random) labels() Labels {
	m := make(map[string]string)
	for _, k := range []string{"a", "b", "c"} {
		if r.IntN(2) == 0 {
			m[k] = one(r, "1", "2")
		}
	}
	return LabelsOf(m)
}

func (r random) selector() (s Selector) {
	for range r.IntN(3) {
		q := Requirement{Key: one(r, "a", "b", "c"), Operator: one(r, In, NotIn, Exists, DoesNotExist)}
		switch q.Operator {
		case In, NotIn:
			q.Values = []string{one(r, "1", "2"), one(r, "1", "2", "3")}
		}
		s.MatchExpressions = append(s.MatchExpressions, q)
	}
	if r.IntN(3) == 0 {
		s.MatchLabels = Labels{{one(r, "a", "b", "c"), one(r, "1", "2")}}
	}
	return s
}

// cidrs are networks that cut through the addresses of pods; excepts are within the network
// before them.
var cidrs = [][]string{
	{"10.1.0.0/16", "10.1.0.0/24", "10.1.1.4/30", "10.1.1.128/25"}, {"10.0.0.0/8", "10.1.2.0/24", "10.1.2.2/31"}, {"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16"},
	{"fd01::/64", "fd01::1:0/112", "fd01::1:4/126"}, {"::/0", "fd01::/64"}, {"192.0.2.0/24"},
}

func (r random) peers() (peers []Peer) {
	for range r.IntN(3) {
		var p Peer
		pods, namespaces := r.selector(), r.selector()
		switch r.IntN(4) {
		case 0:
			p.PodSelector = &pods
		case 1:
			p.NamespaceSelector = &namespaces
		case 2:
			p.PodSelector, p.NamespaceSelector = &pods, &namespaces
		default:
			c := one(r, cidrs...)
			p.IPBlock = &IPBlock{CIDR: c[0]}
			for range r.IntN(3) {
				p.IPBlock.Except = append(p.IPBlock.Except, one(r, c...))
			}
		}
		peers = append(peers, p)
	}
	return peers
}

func (r random) ports() (ports []RulePort) {
	for range r.IntN(3) {
		p := RulePort{Protocol: one(r, "", "TCP", "UDP", "SCTP")}
		switch end := int32(82); r.IntN(4) {
		case 0:
			p.Port = &PortValue{Number: 80}
		case 1:
			p.Port = &PortValue{Name: one(r, "http", "dns")}
		case 2:
			p.Port, p.EndPort = &PortValue{Number: 80}, &end
		}
		ports = append(ports, p)
	}
	return ports
}

func (r random) networkPolicy(i int) NetworkPolicy {
	p := NetworkPolicy{Namespace: one(r, "n0", "n1", "n2"), Name: fmt.Sprint("p", i)}
	p.Spec.PodSelector = r.selector()
	p.Spec.PolicyTypes = one(r, nil, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"})
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, IngressRule{r.ports(), r.peers()})
	}
	for range r.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, EgressRule{r.ports(), r.peers()})
	}
	return p
}

func (r random) podPeer() PodPeer {
	s := r.selector()
	if r.IntN(2) == 0 {
		return PodPeer{Namespaces: &s}
	}
	return PodPeer{Pods: &NamespacedPod{s, r.selector()}}
}

func (r random) protocols() (list []ClusterProtocol) {
	for range r.IntN(3) {
		d := one(r, &DestinationPort{}, &DestinationPort{&ClusterPort{Number: 80}}, &DestinationPort{&ClusterPort{Range: &PortRange{80, 82}}})
		list = append(list, one(r, ClusterProtocol{TCP: d}, ClusterProtocol{UDP: d}, ClusterProtocol{SCTP: d}, ClusterProtocol{NamedPort: one(r, "http", "dns")}))
	}
	return list
}

// clusterPolicy returns a policy whose priority no other has: ties are not defined.
func (r random) clusterPolicy(i int) ClusterNetworkPolicy {
	p := ClusterNetworkPolicy{Name: fmt.Sprint("c", i)}
	p.Spec.Tier, p.Spec.Priority, p.Spec.Subject = one(r, "Admin", "Baseline"), int32(i), r.podPeer()
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, ClusterIngressRule{Action: one(r, "Accept", "Deny", "Pass"), From: []PodPeer{r.podPeer()}, Protocols: r.protocols()})
		s := r.selector()
		to := one(r, ClusterEgressPeer{PodPeer: r.podPeer()}, ClusterEgressPeer{Nodes: &s}, ClusterEgressPeer{Networks: []string{one(r, cidrs...)[0], "192.0.2.0/24"}})
		p.Spec.Egress = append(p.Spec.Egress, ClusterEgressRule{Action: one(r, "Accept", "Deny", "Pass"), To: []ClusterEgressPeer{to}, Protocols: r.protocols()})
	}
	return p
}

func (r random) pod(i int) Pod {
	p := Pod{Namespace: one(r, "n0", "n1", "n2"), Name: fmt.Sprint("p", i), Node: one(r, "n1", "n1", "n2"), Labels: r.labels(),
		Phase: one(r, "Running", "Running", "Running", "Failed"), Leaving: r.IntN(8) == 0, HostNetwork: r.IntN(10) == 0, Created: time.Unix(int64(i), 0)}
	n := r.IntN(12)
	p.Addresses = addrs(fmt.Sprintf("10.1.%d.%d", n%3, n), fmt.Sprintf("fd01::%d:%d", n%3, n))
	for _, name := range []string{"http", "dns"} {
		if r.IntN(2) == 0 {
			p.Ports = append(p.Ports, Port{name, one(r, TCP, UDP), one[uint16](r, 80, 81, 83)})
		}
	}
	return p
}

// state returns a small cluster.
func (r random) state() *State {
	s := &State{Node: "n1", Nodes: []Node{{"n1", r.labels(), addrs("10.0.0.1", "fd00::1")}, {"n2", r.labels(), addrs("10.0.0.2", "fd00::2")}}}
	for i := range 3 {
		s.Namespaces = append(s.Namespaces, Namespace{fmt.Sprint("n", i), r.labels()})
	}
	for i := range 3 + r.IntN(8) {
		s.Pods = append(s.Pods, r.pod(i))
	}
	for i := range r.IntN(5) {
		s.Policies = append(s.Policies, r.networkPolicy(i))
	}
	for i := range r.IntN(3) {
		s.ClusterPolicies = append(s.ClusterPolicies, r.clusterPolicy(i))
	}
	return s
}

// mutate returns another state that differs in little.
func (r random) mutate(s *State) *State {
	n := *s
	n.Pods, n.Namespaces, n.Policies, n.ClusterPolicies = append([]Pod{}, s.Pods...), append([]Namespace{}, s.Namespaces...), append([]NetworkPolicy{}, s.Policies...), append([]ClusterNetworkPolicy{}, s.ClusterPolicies...)
	n.Nodes = append([]Node{}, s.Nodes...)
	for range 1 + r.IntN(3) {
		switch i := r.IntN(100); r.IntN(6) {
		case 0:
			n.Namespaces[i%3].Labels = r.labels()
		case 1:
			n.Pods[i%len(n.Pods)] = r.pod(i % len(n.Pods))
		case 2:
			n.Pods = append(n.Pods, r.pod(len(n.Pods)))
		case 3:
			n.Policies = append(n.Policies, r.networkPolicy(len(n.Policies)+9))
		case 4:
			if len(n.Policies) > 0 {
				n.Policies = n.Policies[1:]
			}
		default:
			n.Nodes[i%2].Labels = r.labels()
		}
	}
	return &n
}

// packet is what the tests probe with.
type packet struct {
	from, to netip.Addr
	proto    Protocol
	port     uint16
}

// packets returns packets between random ends.
func (r random) packets(s *State, n int) (list []packet) {
	ends := append(addrs("192.0.2.1", "2001:db8::1"), append(s.Nodes[0].Addresses, s.Nodes[1].Addresses...)...)
	for _, p := range s.Pods {
		ends = append(ends, p.Addresses...)
	}
	for len(list) < n {
		if from, to := one(r, ends...), one(r, ends...); from.Is4() == to.Is4() {
			list = append(list, packet{from, to, one(r, TCP, UDP, SCTP, ICMP), one[uint16](r, 80, 81, 83)})
		}
	}
	return list
}

// TestOracle compares programs with the oracle. A failure prints the seed of its state.
func TestOracle(t *testing.T) {
	verdicts := [2]int{}
	for seed := range uint64(1000) {
		r := random{rand.New(rand.NewPCG(seed, 1))}
		s := r.state()
		program := Compile(s)
		if len(program.Problems) > 0 && program.Problems[0].Object[:4] != "pod " {
			t.Fatalf("seed %d: %s", seed, program.Problems)
		}
		for _, p := range r.packets(s, 60) {
			v, why := program.Allows(p.from, p.to, p.proto, p.port)
			verdicts[v]++
			if want := s.oracle(p.from, p.to, p.proto, p.port); want != (v == Accept) {
				t.Fatalf("seed %d: %v: got %s, the oracle says %t\n%s\n%s\n%+v", seed, p, v, want, why, program, s)
			}
		}
	}
	t.Logf("%d accepted, %d denied", verdicts[Accept], verdicts[Deny])
	if verdicts[Accept] < 3000 || verdicts[Deny] < 3000 {
		t.Errorf("%v accepted and denied: the states test little", verdicts)
	}
}
