// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// costly returns a policy that allows each of n selectors of all namespaces.
func costly(namespace, name string, n int) NetworkPolicy {
	p := NetworkPolicy{Namespace: namespace, Name: name}
	from := make([]Peer, n)
	for i := range from {
		from[i] = Peer{NamespaceSelector: &Selector{}, PodSelector: &Selector{MatchExpressions: []Requirement{{Key: fmt.Sprint(name, i), Operator: DoesNotExist}}}}
	}
	p.Spec.Ingress = []IngressRule{{From: from}}
	return p
}

// blocks returns a policy that allows n networks, none of which touches another.
func blocks(namespace string, n int) NetworkPolicy {
	p := NetworkPolicy{Namespace: namespace, Name: "blocks"}
	from := make([]Peer, n)
	for i := range from {
		from[i].IPBlock = &IPBlock{CIDR: fmt.Sprintf("20.%d.%d.%d/32", i>>15, i>>7&255, i<<1&255)}
	}
	p.Spec.Ingress = []IngressRule{{From: from}}
	return p
}

// others returns the part of a program that is not of namespace x.
func others(p *Program) string {
	out := Program{Node: p.Node, Addresses: p.Addresses, RangeSets: p.RangeSets}
	for _, s := range p.Sets {
		if strings.HasPrefix(s.Name, "y{") {
			out.Sets = append(out.Sets, s)
		}
	}
	for _, c := range p.Chains {
		if !strings.HasPrefix(c.Policy, "x/") {
			out.Chains = append(out.Chains, c)
		}
	}
	for _, l := range p.Pods {
		if !strings.HasPrefix(l.Name, "x/") {
			out.Pods = append(out.Pods, l)
		}
	}
	return out.String()
}

// Policies over the budget of their namespace break, the largest first, and those of others stay as they are.
func TestBudget(t *testing.T) {
	wide := costly("x", "wide", 1)
	for i := range budget.rules + 1 {
		wide.Spec.Ingress = append(wide.Spec.Ingress, IngressRule{From: wide.Spec.Ingress[0].From, Ports: []RulePort{{Port: &PortValue{Number: int32(1 + i)}}}})
	}
	for name, c := range map[string]struct {
		add    []NetworkPolicy
		broken string
	}{
		"selectors":       {[]NetworkPolicy{costly("x", "n", budget.selectors+1)}, "networkpolicy x/n: with it, the policies of namespace x need at least 501 different selectors of peers, and the limit is 500: "},
		"at the limit":    {[]NetworkPolicy{costly("x", "n", budget.selectors)}, ""},
		"together":        {[]NetworkPolicy{costly("x", "large", budget.selectors-1), costly("x", "small", 2)}, "networkpolicy x/large: "},
		"of each":         {[]NetworkPolicy{costly("x", "n", budget.selectors), costly("z", "m", budget.selectors)}, ""},
		"rules":           {[]NetworkPolicy{wide}, "networkpolicy x/wide: with it, the policies of namespace x need at least 5001 rules with a peer"},
		"ranges":          {[]NetworkPolicy{blocks("x", budget.ranges+1)}, "networkpolicy x/blocks: with it, the policies of namespace x need at least 20001 ranges"},
		"ranges, allowed": {[]NetworkPolicy{blocks("x", budget.ranges)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := world(t, `y/allow {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`)
			before := Compile(s)
			s.Policies = append(s.Policies, c.add...)
			after := Compile(s)
			if c.broken == "" {
				if len(after.Problems) > 0 {
					t.Error(after.Problems)
				}
				return
			}
			if len(after.Problems) != 1 || !strings.HasPrefix(after.Problems[0].String(), c.broken) {
				t.Fatalf("problems are %.300q, want one: %q", after.Problems, c.broken)
			}
			if g, w := others(after), others(before); g != w {
				t.Errorf("got for the others\n%s\nwant\n%s", g, w)
			}
			s.check(t, "192.0.2.1 > x/a tcp 6000: deny\ny/b > y/a tcp 80: accept\ny/c > y/a tcp 80: deny\nx/a > z/a tcp 80: accept")
		})
	}
}

// Many addresses of pods count, although the selectors are few.
func TestBudgetOfAddresses(t *testing.T) {
	s := large(1000)
	before := Compile(s)
	each := len(before.Addresses)
	s.Policies = append(s.Policies, costly("ns0", "wide", budget.addresses/each+1))
	after := Compile(s)
	if len(after.Problems) != 1 || !strings.Contains(after.Problems[0].Text, "addresses of pods") || len(after.Sets) != len(before.Sets) {
		t.Errorf("%d sets, and before %d; problems %v", len(after.Sets), len(before.Sets), after.Problems)
	}
}

// A name of a port counts once for each number that it has: in the pods of a peer, or of those that receive.
func TestBudgetOfNamedPorts(t *testing.T) {
	for name, spec := range map[string]string{
		"egress":  `{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{}}],"ports":[{"port":"many"}]}]}`,
		"ingress": `{"podSelector":{},"ingress":[` + strings.Repeat(`{"from":[{"podSelector":{}}],"ports":[{"port":"many"}]},`, 9) + `{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := world(t, "x/named "+spec)
			if p := Compile(s); len(p.Problems) > 0 {
				t.Fatal(p.Problems)
			}
			for i := range budget.selectors + 1 {
				s.Pods = append(s.Pods, Pod{Namespace: "x", Name: fmt.Sprint("m", i), Node: "n1", Ports: []Port{{"many", l4.TCP, uint16(1 + i)}}, Addresses: addrs(fmt.Sprintf("10.9.%d.%d", i/250, i%250))})
			}
			if p := Compile(s); len(p.Problems) != 1 || p.Problems[0].Object != "networkpolicy x/named" {
				t.Errorf("problems %.300q", p.Problems)
			}
		})
	}
}

// A ClusterNetworkPolicy over the budget denies its pods everything, in its tier and its directions: what it denied
// stays denied.
func TestBudgetOfTheCluster(t *testing.T) {
	var peers []string
	for i := range budget.selectors + 1 {
		peers = append(peers, fmt.Sprintf(`{"namespaces":{"matchExpressions":[{"key":"n%d","operator":"Exists"}]}}`, i))
	}
	s := world(t, `wide {"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"ns":"x"}}},"ingress":[{"action":"Accept","from":[`+strings.Join(peers, ",")+`]},{"action":"Deny","from":[{"namespaces":{}}]}]}`,
		`x/open {"podSelector":{},"ingress":[{}]}`)
	s.check(t, "y/a > x/a tcp 80: deny\ny/a > y/b tcp 80: accept\nx/a > y/a tcp 80: accept")
	if p := Compile(s); len(p.Problems) != 1 || !strings.HasPrefix(p.Problems[0].String(), "clusternetworkpolicy wide: it needs 501 different selectors") {
		t.Errorf("problems %.300q", p.Problems)
	}
}

// Thousands of usual policies are within the budget.
func TestBudgetOfMany(t *testing.T) {
	for _, n := range []int{1000, 5000} {
		if p := Compile(large(n)); slices.ContainsFunc(p.Problems, func(p Problem) bool { return strings.Contains(p.Text, "the limit is") }) {
			t.Errorf("%d policies: %v", n, p.Problems)
		}
	}
}
