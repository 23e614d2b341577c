// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// large returns a cluster as in the targets: 20,000 pods in 200 namespaces, 110 of them on this
// node, with two addresses each, and policies of the common kinds. Pods of one workload share the
// memory of their labels, as they may in an agent.
func large(policies int) *State {
	s := &State{Node: "node0", Nodes: []Node{{Name: "node0", Addresses: addrs("192.0.2.1")}}}
	const namespaces, workloads, replicas = 200, 10, 10
	for n := range namespaces {
		name := fmt.Sprint("ns", n)
		s.Namespaces = append(s.Namespaces, Namespace{name, LabelsOf(map[string]string{"kubernetes.io/metadata.name": name, "team": fmt.Sprint("t", n%20)})})
		for w := range workloads {
			labels := LabelsOf(map[string]string{"app": fmt.Sprint("app", w), "tier": fmt.Sprint("tier", w%3), "pod-template-hash": fmt.Sprintf("%d-%d", n, w), "version": "v1"})
			ports := []Port{{"http", l4.TCP, uint16(8000 + w)}, {"metrics", l4.TCP, 9090}}
			for r := range replicas {
				i := len(s.Pods)
				p := Pod{Namespace: name, Name: fmt.Sprintf("app%d-%d", w, r), Node: fmt.Sprint("node", i%182), Labels: labels, Ports: ports, Phase: "Running",
					Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(1 + i>>16), byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})}}
				s.Pods = append(s.Pods, p)
			}
		}
	}
	for i := range policies {
		s.Policies = append(s.Policies, common(i, fmt.Sprint("ns", i%namespaces)))
	}
	return s
}

// common returns a policy of one of five common kinds.
func common(i int, namespace string) NetworkPolicy {
	app := Selector{MatchLabels: Labels{{"app", fmt.Sprint("app", i%10)}}}
	team := Selector{MatchLabels: Labels{{"team", fmt.Sprint("t", i%20)}}}
	p := NetworkPolicy{Namespace: namespace, Name: fmt.Sprint("p", i)}
	switch i / 200 % 5 {
	case 0: // deny all
		p.Spec.PolicyTypes = []string{"Ingress", "Egress"}
	case 1: // within the namespace, and DNS
		p.Spec.Ingress = []IngressRule{{From: []Peer{{PodSelector: &Selector{}}}}}
		p.Spec.Egress = []EgressRule{{Ports: []RulePort{{Protocol: "UDP", Port: &PortValue{Number: 53}}}}, {To: []Peer{{PodSelector: &Selector{}}}}}
	case 2: // one workload to another
		p.Spec.PodSelector = app
		p.Spec.Ingress = []IngressRule{{From: []Peer{{PodSelector: &Selector{MatchLabels: Labels{{"tier", "tier1"}}}}}, Ports: []RulePort{{Port: &PortValue{Name: "http"}}}}}
	case 3: // from a team's namespaces
		p.Spec.PodSelector = app
		p.Spec.Ingress = []IngressRule{{From: []Peer{{NamespaceSelector: &team}, {IPBlock: &IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.3.0.0/16"}}}}}}
	default: // to a team's metrics by name
		p.Spec.Egress = []EgressRule{{To: []Peer{{NamespaceSelector: &team}}, Ports: []RulePort{{Port: &PortValue{Name: "metrics"}}}}}
	}
	return p
}

// elements counts what the kernel would hold.
func elements(p *Program) string {
	members, rules, jumps := 0, 0, 0
	for _, s := range p.Sets {
		members += len(s.Members)
	}
	for _, c := range p.Chains {
		rules += len(c.Rules)
	}
	for _, l := range p.Pods {
		jumps += len(l.Sides[0].Chains) + len(l.Sides[1].Chains)
	}
	return fmt.Sprintf("%d local pods, %d identities, %d addresses, %d sets with %d members, %d range sets, %d chains with %d rules, %d jumps",
		len(p.Pods), len(p.Identities), len(p.Addresses), len(p.Sets), members, len(p.RangeSets), len(p.Chains), rules, jumps)
}

func BenchmarkCompile(b *testing.B) {
	for _, policies := range []int{0, 1000, 5000} {
		b.Run(fmt.Sprint(policies, "policies"), func(b *testing.B) {
			base := heap()
			s := large(policies)
			state := heap() - base
			p := Compile(s)
			program := heap() - base - state
			b.ReportAllocs()
			start := cpu()
			for b.Loop() {
				Compile(s)
			}
			b.ReportMetric((cpu()-start).Seconds()*1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(state)/float64(len(s.Pods)), "state-B/pod")
			b.ReportMetric(float64(program)/float64(len(s.Pods)), "program-B/pod")
			b.Log(elements(p))
		})
	}
}

// BenchmarkOnePod measures what an ADD would pay: a pod with the five policies of its namespace.
func BenchmarkOnePod(b *testing.B) {
	s := large(1000)
	part := s.alone(&s.Pods[0])
	for b.Loop() {
		Compile(part)
	}
	b.Logf("%d policies", len(part.Policies))
}

// cpu returns the processor time of this process. Unlike the time of a clock, it hardly depends
// on what else the machine does.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
