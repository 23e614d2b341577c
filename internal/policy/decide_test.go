// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// A pod that has no address yet gets the isolation, the chains, the identity and the sets that the
// program has for it later.
func TestDecider(t *testing.T) {
	compared, isolated := 0, 0
	for seed := range uint64(100) {
		g := policytest.NewGenerator(seed, policytest.Small)
		s, err := stateOf(g.Clone())
		if err != nil {
			t.Fatal(err)
		}
		s.Node = s.Nodes[0].Name
		d := NewDecider(&s)
		text := d.Program.String()
		for _, l := range d.Program.Pods {
			p := *s.pod(l.Name)
			p.Addresses = nil
			got := d.Decide(&p)
			want := Decision{l.Sides, d.Program.identity(l.Addresses[0]), d.Program.setsOf(d.Program.identity(l.Addresses[0])), d.Program.against(l.Addresses[0])}
			if !got.equal(&want) {
				t.Fatalf("seed %d, pod %s: got %+v, want %+v\n%s", seed, l.Name, got, want, text)
			}
			compared++
			if got.Sides[Ingress].Isolated {
				isolated++
			}
		}
		if after := d.Program.String(); after != text {
			t.Fatalf("seed %d: the Decider changed the program from\n%s\nto\n%s", seed, text, after)
		}
	}
	if compared < 100 || isolated < 30 {
		t.Errorf("compared %d pods, %d of them isolated, want 100 and 30", compared, isolated)
	}
}

// If the state does not have the pod at all, only the number of a new identity can differ.
func TestDeciderBeforeThePod(t *testing.T) {
	compared := 0
	for seed := range uint64(100) {
		g := policytest.NewGenerator(seed, policytest.Small)
		s, err := stateOf(g.Clone())
		if err != nil {
			t.Fatal(err)
		}
		s.Node = s.Nodes[0].Name
		for _, l := range Compile(&s).Pods {
			p, before := *s.pod(l.Name), s
			before.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(o Pod) bool { return o.path() == l.Name })
			got := NewDecider(&before).Decide(&p)
			want := Compile(&s).identity(l.Addresses[0])
			if !got.Sides[0].equal(&l.Sides[0]) || !got.Sides[1].equal(&l.Sides[1]) || got.Identity != want {
				t.Fatalf("seed %d, pod %s: got %+v, want %+v and identity %s", seed, l.Name, got, l.Sides, want)
			}
			compared++
		}
	}
	if compared < 100 {
		t.Errorf("compared %d pods, want 100", compared)
	}
}

func TestDeciderWithoutLabels(t *testing.T) {
	s := world(t, `x/web {"podSelector":{"matchLabels":{"pod":"a"}}}`, `y/all {"podSelector":{},"ingress":[{"ports":[{"port":"http"}]}]}`,
		`deny {"tier":"Admin","subject":{"namespaces":{"matchLabels":{"ns":"v"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}],"protocols":[{"destinationNamedPort":"http"}]}]}`,
		`accept {"tier":"Admin","subject":{"namespaces":{"matchLabels":{"ns":"w"}}},"ingress":[{"action":"Accept","from":[{"namespaces":{}}],"protocols":[{"destinationNamedPort":"http"}]}]}`)
	for _, name := range []string{"v", "w"} {
		s.Namespaces = append(s.Namespaces, Namespace{name, Labels{{"ns", name}}})
	}
	d := NewDecider(s)
	problems := len(d.Program.Problems)
	for namespace, want := range map[string]Side{
		"x": {Isolated: true, Unknown: true},
		"y": {Isolated: true, Chains: []string{"ingress y/all with no port"}},
		"z": {},
		"v": {Isolated: true, Unknown: true}, // the pod may have the port under any number
		"w": {Chains: []string{"ingress accept with no port"}},
	} {
		got := d.Decide(&Pod{Namespace: namespace, Name: "new", Node: "n1", Unknown: true})
		if !got.Sides[Ingress].equal(&want) || got.Identity != 0 || got.Sets != nil {
			t.Errorf("namespace %s: got %+v, want %+v", namespace, got, want)
		}
	}
	if len(d.Program.Problems) != problems {
		t.Errorf("the Decider added to the problems: %v", d.Program.Problems)
	}
}

// A new identity does not take the number of another one.
func TestDeciderWithOneHash(t *testing.T) {
	one, two := collision()
	s := world(t, `x/a {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"pod","operator":"Exists"}]}}]}]}`)
	s.pod("x/b").Labels = Labels{{"pod", one}}
	d := NewDecider(s)
	known := d.Decide(&Pod{Namespace: "x", Labels: Labels{{"pod", one}}})
	other := d.Decide(&Pod{Namespace: "x", Labels: Labels{{"pod", two}}})
	if known.Identity == 0 || other.Identity != 0 {
		t.Errorf("got the numbers %s and %s, want the second one to be 0", known.Identity, other.Identity)
	}
	if !slices.Equal(other.Sets, []string{"x{pod}"}) {
		t.Errorf("got the sets %q", other.Sets)
	}
}

func (l *LocalPod) equal(o *LocalPod) bool {
	return slices.Equal(l.Addresses, o.Addresses) && l.Sides[0].equal(&o.Sides[0]) && l.Sides[1].equal(&o.Sides[1])
}

func (s *Side) equal(o *Side) bool {
	return s.Isolated == o.Isolated && s.Unknown == o.Unknown && slices.Equal(s.Chains, o.Chains)
}

func (d *Decision) equal(o *Decision) bool {
	return d.Sides[0].equal(&o.Sides[0]) && d.Sides[1].equal(&o.Sides[1]) && d.Identity == o.Identity && d.Against == o.Against && slices.Equal(d.Sets, o.Sets)
}

// setsOf returns the sets that have an identity.
func (p *Program) setsOf(n Number) (names []string) {
	for _, s := range p.Sets {
		if slices.Contains(s.Members, n) {
			names = append(names, s.Name)
		}
	}
	return names
}

// against returns the directions in which rules of the program deny an address.
func (p *Program) against(a netip.Addr) (sides [2]bool) {
	for _, set := range p.setsOf(p.identity(a)) {
		for _, c := range p.Chains {
			for _, r := range c.Rules {
				if r.Set == set && r.Verdict != Accept {
					sides[1-c.Direction] = true
				}
			}
		}
	}
	return sides
}

// A new pod is not in the set of a rule that denies it, until a program has its address. So its ADD must close it.
// If its labels are not known, the rule may deny it, too.
func TestDecideAgainst(t *testing.T) {
	deny := func(side, namespaces string) string {
		return `{"metadata":{"name":"wall"},"spec":{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"vault"}}}},"` +
			side + `":[{"action":"Deny","` + map[string]string{"ingress": "from", "egress": "to"}[side] + `":[{"pods":{"namespaceSelector":` + namespaces + `,"podSelector":{"matchLabels":{"app":"web"}}}}]}]}}`
	}
	web, other := LabelsOf(map[string]string{"app": "web"}), LabelsOf(map[string]string{"app": "other"})
	for _, c := range []struct {
		side, namespaces string
		pod              Pod
		want             [2]bool
	}{
		{"ingress", "{}", Pod{Namespace: "shop", Labels: web}, [2]bool{Egress: true}},
		{"egress", "{}", Pod{Namespace: "shop", Labels: web}, [2]bool{Ingress: true}},
		{"ingress", "{}", Pod{Namespace: "shop", Labels: other}, [2]bool{}},
		{"ingress", "{}", Pod{Namespace: "shop", Unknown: true}, [2]bool{Egress: true}},
		{"ingress", `{"matchLabels":{"team":"a"}}`, Pod{Namespace: "shop", Labels: web}, [2]bool{}},
		{"ingress", `{"matchLabels":{"team":"a"}}`, Pod{Namespace: "shop", Unknown: true}, [2]bool{}},
		{"ingress", `{"matchLabels":{"team":"a"}}`, Pod{Namespace: "new", Labels: web}, [2]bool{Egress: true}},
	} {
		policy, err := ParseClusterNetworkPolicy([]byte(deny(c.side, c.namespaces)))
		if err != nil {
			t.Fatal(err)
		}
		vault := Pod{Namespace: "bank", Name: "vault", Node: "n1", Phase: "Running", Labels: LabelsOf(map[string]string{"app": "vault"}), Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.9")}}
		s := &State{Node: "n1", Namespaces: []Namespace{{Name: "shop"}, {Name: "bank"}}, ClusterPolicies: []ClusterNetworkPolicy{policy}, Pods: []Pod{vault}}
		if got := NewDecider(s).Decide(&c.pod); got.Against != c.want {
			t.Errorf("%s from %s, pod %+v: got %+v, want %v", c.side, c.namespaces, c.pod, got, c.want)
		}
	}
}
