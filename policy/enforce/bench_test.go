// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/policy"
)

// large returns a cluster of 100 namespaces with 200 pods each. 110 pods are on this node. Each
// namespace has the same number of policies. Half of the namespaces have the label team=a.
func large(b *testing.B, policies int) *policy.State {
	s := &policy.State{Node: "n0", Nodes: []policy.Node{{Name: "n0", Addresses: addrs("192.0.2.1")}}}
	for i := range 100 {
		ns := fmt.Sprint("ns", i)
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: ns, Labels: labels("team", [2]string{"a", "b"}[i%2])})
		for j := range 200 {
			n := i*200 + j
			s.Pods = append(s.Pods, policy.Pod{
				Namespace: ns, Name: fmt.Sprint("pod", j), Node: fmt.Sprint("n", n/110), Phase: "Running", Labels: labels("app", fmt.Sprint("app", j%10)),
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)})},
			})
		}
	}
	// The pods of this node are spread over the namespaces.
	for i := range s.Pods {
		s.Pods[i].Node = "n1"
	}
	for i := range 110 {
		s.Pods[i*181].Node = "n0"
	}
	for i := range policies {
		add(b, s, fmt.Sprintf(`ns%d/p%d {"podSelector":{"matchLabels":{"app":"app%d"}},"policyTypes":["Ingress"],"ingress":[
			{"from":[{"podSelector":{"matchLabels":{"app":"app%d"}}}],"ports":[{"port":80},{"port":443}]},
			{"from":[{"namespaceSelector":{"matchLabels":{"team":"a"}},"podSelector":{"matchLabels":{"app":"app%d"}}}],"ports":[{"port":80}]}]}`,
			i%100, i, i/100%10, (i+1)%10, (i+2)%10))
	}
	return s
}

// BenchmarkLoad measures one change of the kernel, without the compilation, in a cluster of 20,000
// pods: everything, one policy, and the label of 50 namespaces with 10,000 pods.
func BenchmarkLoad(b *testing.B) {
	for _, policies := range []int{1000, 5000} {
		s := large(b, policies)
		full := policy.Compile(s)
		s.Policies[0].Spec.Ingress = s.Policies[0].Spec.Ingress[:1]
		edited := policy.Compile(s)
		for i := range s.Namespaces {
			s.Namespaces[i].Labels = labels("team", "a")
		}
		relabelled := policy.Compile(s)
		s.Pods[1].Labels = labels("app", "app7")
		moved := policy.Compile(s)
		for _, c := range []struct {
			name string
			from *policy.Program
			to   *policy.Program
		}{{"all", &policy.Program{}, full}, {"policy", full, edited}, {"namespaces", edited, relabelled}, {"pod", relabelled, moved}, {"none", moved, moved}, {"remove", moved, &policy.Program{}}} {
			b.Run(fmt.Sprintf("policies=%d/%s", policies, c.name), func(b *testing.B) { change(b, c.from, c.to) })
		}
	}
}

// change measures how long it takes to load a program after another.
func change(b *testing.B, from, to *policy.Program) {
	e, _ := open(b)
	var switched time.Duration
	elements := 0
	for b.Loop() {
		b.StopTimer()
		load(b, e, from)
		plan, err := planOf(&stateOf(from).state, stateOf(to))
		must(b, err)
		elements = len(plan.switchOver)
		b.StartTimer()
		start := time.Now()
		load(b, e, to)
		switched += time.Since(start)
	}
	b.ReportMetric(float64(elements), "switch-steps")
}
