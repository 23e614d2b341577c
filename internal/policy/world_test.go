// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// world returns a cluster of two nodes. Each of the namespaces x and y (on node n1) and z (on
// node n2) has the pods a, b and c. Pods have the label pod, and the ports http (80/tcp) and
// dns (53/udp); in namespace y, http is 8080. Besides, x/host is in the network of node n1.
func world(t *testing.T, policies ...string) *State {
	s := &State{Node: "n1", Local: addrs("10.0.0.1", "172.17.0.1", "169.254.20.10"), Nodes: []Node{
		{"n1", LabelsOf(map[string]string{"zone": "1"}), addrs("10.0.0.1", "fd00::1"), prefixes("10.244.1.0/24", "fd02:1::/64")},
		{"n2", LabelsOf(map[string]string{"zone": "2"}), addrs("10.0.0.2", "fd00::2"), prefixes("10.244.2.0/24", "fd02:2::/64")},
	}}
	for i, ns := range []string{"x", "y", "z"} {
		labels := map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns}
		s.Namespaces = append(s.Namespaces, Namespace{ns, LabelsOf(labels)})
		for j, pod := range []string{"a", "b", "c"} {
			p := Pod{Namespace: ns, Name: pod, Node: "n1", Labels: LabelsOf(map[string]string{"pod": pod}), Phase: "Running",
				Ports:     []Port{{"http", l4.TCP, 80}, {"dns", l4.UDP, 53}},
				Addresses: addrs(fmt.Sprintf("10.1.%d.%d", i+1, j+1), fmt.Sprintf("fd01::%d:%d", i+1, j+1))}
			switch ns {
			case "y":
				p.Ports[0].Number = 8080
			case "z":
				p.Node = "n2"
			}
			s.Pods = append(s.Pods, p)
		}
	}
	s.Pods = append(s.Pods, Pod{Namespace: "x", Name: "host", Node: "n1", Labels: LabelsOf(map[string]string{"pod": "a"}),
		Phase: "Running", HostNetwork: true, Addresses: addrs("10.0.0.1", "fd00::1"), Ports: []Port{{"http", l4.TCP, 80}}})
	for _, p := range policies {
		s.add(t, p)
	}
	return s
}

// add adds a policy: "x/web {…}" with a specification, or "deny {…}" for the cluster.
func (s *State) add(t *testing.T, policy string) {
	t.Helper()
	name, spec, _ := strings.Cut(policy, " ")
	if ns, pod, ok := strings.Cut(name, "/"); ok {
		p, _ := ParseNetworkPolicy([]byte(fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q},"spec":%s}`, ns, pod, spec)))
		s.Policies = append(s.Policies, p)
		return
	}
	p, _ := ParseClusterNetworkPolicy([]byte(fmt.Sprintf(`{"metadata":{"name":%q},"spec":%s}`, name, spec)))
	s.ClusterPolicies = append(s.ClusterPolicies, p)
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// find returns the addresses of "x/a", of "n1", or of an address. The first is IPv4.
func (s *State) find(t *testing.T, name string) []netip.Addr {
	t.Helper()
	for _, p := range s.Pods {
		if p.path() == name {
			return p.Addresses
		}
	}
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.Addresses
		}
	}
	a, err := netip.ParseAddr(name)
	if err != nil {
		t.Fatal(err)
	}
	return []netip.Addr{a}
}

// pod returns a pod of the world.
func (s *State) pod(name string) *Pod {
	for i := range s.Pods {
		if s.Pods[i].path() == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// check compares decisions: each line is "x/a > y/b tcp 80: accept". Both families must agree.
func (s *State) check(t *testing.T, probes string) {
	t.Helper()
	program := Compile(s)
	for _, line := range strings.Split(strings.TrimSpace(probes), "\n") {
		f := strings.Fields(strings.ReplaceAll(line, ":  ", " "))
		if len(f) != 6 {
			t.Fatalf("line %q has %d words, want 6", line, len(f))
		}
		from, to := s.find(t, f[0]), s.find(t, f[2])
		port, err := strconv.Atoi(strings.TrimSuffix(f[4], ":"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range max(len(from), len(to)) {
			src, dst := from[min(i, len(from)-1)], to[min(i, len(to)-1)]
			if src.Is4() != dst.Is4() {
				continue
			}
			v, why := program.Allows(src, dst, protocolNamed(t, f[3]), uint16(port))
			if v.String() != f[5] {
				t.Errorf("%s: got %s from %s to %s:\n%s\n\n%s", strings.TrimSpace(line), v, src, dst, why, program)
			}
		}
	}
}

func protocolNamed(t *testing.T, name string) l4.Protocol {
	for _, p := range []l4.Protocol{l4.ICMP, l4.TCP, l4.UDP, l4.ICMPv6, l4.SCTP, 47} {
		if p.String() == name || name == "gre" && p == 47 {
			return p
		}
	}
	t.Fatalf("no protocol %q", name)
	return 0
}
