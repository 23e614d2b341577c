// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// These are the lines of the checklist about changes: each case changes the world first.
func TestChecklistOfChanges(t *testing.T) {
	closed := `x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`
	for _, c := range []struct {
		name   string
		change func(*State)
		probes string
	}{
		{"08 a finished pod has no address", func(s *State) { s.pod("y/b").Phase = "Succeeded" }, `y/b > x/a tcp 80: deny`},
		{"08 nor has a failed one", func(s *State) { s.pod("y/b").Phase = "Failed" }, `y/b > x/a tcp 80: deny`},
		{"08 a finished pod is not enforced", func(s *State) { s.pod("x/a").Phase = "Failed" }, `192.0.2.1 > x/a tcp 80: accept`},
		{"08 its address belongs to the next pod", func(s *State) {
			s.pod("y/b").Phase = "Failed"
			s.pod("z/a").Addresses = s.pod("y/b").Addresses
		}, `z/a > x/a tcp 80: deny`},
		{"08 a pod that leaves is enforced and is a peer", func(s *State) { s.pod("y/b").Leaving, s.pod("x/a").Leaving = true, true }, `
			y/b > x/a tcp 80: accept
			y/a > x/a tcp 80: deny`},
		{"08 of two pods with one address, the one that stays has it", func(s *State) {
			s.pod("y/b").Leaving, s.pod("y/b").Created = true, time.Unix(9, 0)
			s.pod("z/a").Addresses = s.pod("y/b").Addresses
		}, `z/a > x/a tcp 80: deny`},
		{"08 of two pods with one address, the newer has it", func(s *State) {
			s.pod("z/a").Addresses, s.pod("z/a").Created = s.pod("y/b").Addresses, time.Unix(9, 0)
		}, `z/a > x/a tcp 80: deny`},
		{"13 a pod's label changes", func(s *State) { s.pod("y/b").Labels = LabelsOf(map[string]string{"pod": "q"}) }, `y/b > x/a tcp 80: deny`},
		{"13 a namespace's label changes", func(s *State) {
			s.Namespaces[2].Labels, s.Namespaces[1].Labels = s.Namespaces[1].Labels, s.Namespaces[2].Labels
		}, `
			y/b > x/a tcp 80: deny
			z/b > x/a tcp 80: accept`},
		{"28 a pod without known labels is isolated", func(s *State) { s.pod("x/a").Unknown = true }, `y/b > x/a tcp 80: accept
			y/a > x/a tcp 80: deny`},
		{"28 and no selector matches it", func(s *State) { s.pod("y/b").Unknown = true }, `y/b > x/a tcp 80: deny`},
		{"29 a namespace without known labels matches nothing", func(s *State) { s.Namespaces = s.Namespaces[:1] }, `y/b > x/a tcp 80: deny`},
		{"30 all addresses of a pod are judged", func(s *State) { s.pod("x/a").Addresses = append(s.pod("x/a").Addresses, addrs("10.9.9.9")...) }, `
			y/b > 10.9.9.9 tcp 80: accept
			y/a > 10.9.9.9 tcp 80: deny`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := world(t, closed)
			s.check(t, "y/b > x/a tcp 80: accept\nz/b > x/a tcp 80: deny")
			c.change(s)
			s.check(t, c.probes)
		})
	}
}

// Without known labels, a pod is open only if no policy can select it.
func TestUnknownLabels(t *testing.T) {
	for _, c := range []struct{ name, policy, probes string }{
		{"a policy that selects all", `x/a {"podSelector":{},"ingress":[{}]}`, "y/a > x/a tcp 80: accept"},
		{"a policy that may select it", `x/a {"podSelector":{"matchLabels":{"pod":"q"}},"ingress":[{}]}`, "y/a > x/a tcp 80: deny\nx/a > y/a tcp 80: accept"},
		{"a policy of another namespace", `y/a {"podSelector":{"matchLabels":{"pod":"q"}},"policyTypes":["Ingress","Egress"]}`, "z/a > x/a tcp 80: accept"},
		{"a cluster's policy that may", `c {"tier":"Baseline","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"pod":"q"}}}},
			"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`, "y/a > x/a tcp 80: accept\nx/a > 192.0.2.1 tcp 80: deny"},
		{"a cluster's policy for another namespace", `c {"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchLabels":{"pod":"q"}}}},
			"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`, "x/a > z/a tcp 80: accept"},
		{"a rule that denies its namespace", forY + `"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"ns":"x"}}}]}]}`,
			"x/a > y/a tcp 80: deny\ny/a > x/a tcp 80: accept\nx/b > x/a tcp 80: accept"},
		{"a rule that may deny it", forY + `"egress":[{"action":"Deny","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"pod":"q"}}}}]}]}`,
			"y/a > x/a tcp 80: deny\nx/a > y/a tcp 80: accept"},
		{"a rule that keeps it from what another accepts", forY + `"ingress":[{"action":"Pass","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"pod":"q"}}}}]},{"action":"Accept","from":[{"namespaces":{}}]}]}`,
			"x/a > y/a tcp 80: deny"},
		{"a rule that denies others", forY + `"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"ns":"z"}}}]}]}`, "x/a > y/a tcp 80: accept"},
		{"a rule that accepts others", forY + `"ingress":[{"action":"Accept","from":[{"namespaces":{"matchLabels":{"ns":"x"}}}]}]}`, "x/a > y/a tcp 80: accept"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := world(t, c.policy)
			s.pod("x/a").Unknown = true
			s.check(t, c.probes)
		})
	}
}

// A cluster's policy that looks at labels of namespaces may select a pod whose namespace is not
// known.
func TestUnknownNamespace(t *testing.T) {
	s := world(t, `c {"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"ns":"x"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`)
	s.Namespaces = s.Namespaces[1:]
	s.check(t, "z/a > x/a tcp 80: deny\nx/a > z/a tcp 80: accept")
	s = world(t, `c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"ns":"x"}}}]}]}`)
	s.Namespaces = s.Namespaces[1:]
	s.check(t, "x/a > y/a tcp 80: deny\ny/a > x/a tcp 80: accept")
}

// forY begins a policy of the cluster for the pods of y.
const forY = `c {"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"ns":"y"}}},`

// A policy that cannot be understood isolates the pods that it selects, allows nothing and is
// reported.
func TestBroken(t *testing.T) {
	for _, c := range []struct{ name, spec, problem, probes string }{
		{"unknown operator of a peer", `{"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{},{"from":[{"podSelector":{"matchExpressions":[{"key":"q","operator":"Gt","values":["1"]}]}}]}]}`,
			`ingress[1], peer 0: operator "Gt" of label "q" is not known`, "y/a > x/a tcp 80: deny\ny/a > x/b tcp 80: accept\nx/a > y/a tcp 80: accept"},
		{"unknown operator of the subject", `{"podSelector":{"matchExpressions":[{"key":"q","operator":"Gt","values":["1"]}]},"ingress":[{}]}`,
			`podSelector: operator "Gt" of label "q" is not known`, "y/a > x/a tcp 80: deny\nx/a > y/a tcp 80: accept"},
		{"In without values", `{"podSelector":{"matchExpressions":[{"key":"q","operator":"In"}]},"ingress":[{}]}`,
			`podSelector: operator In of label "q" needs values`, "y/a > x/a tcp 80: deny"},
		{"Exists with values", `{"podSelector":{"matchExpressions":[{"key":"q","operator":"Exists","values":["a"]}]},"ingress":[{}]}`,
			`podSelector: operator Exists of label "q" takes no values`, "y/a > x/a tcp 80: deny"},
		{"bad CIDR", `{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/33"}}]}]}`,
			`ingress[0], peer 0: CIDR "10.0.0.0/33": netip.ParsePrefix("10.0.0.0/33"): prefix length out of range`, "y/a > x/a tcp 80: deny"},
		{"CIDR of both families", `{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"::ffff:10.0.0.0/100"}}]}]}`,
			`ingress[0], peer 0: CIDR "::ffff:10.0.0.0/100" is an IPv4 address written as IPv6`, "y/a > x/a tcp 80: deny"},
		{"except outside", `{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["11.0.0.0/9"]}}]}]}`,
			`ingress[0], peer 0: except "11.0.0.0/9" is not within "10.0.0.0/8"`, "y/a > x/a tcp 80: deny"},
		{"except of the other family", `{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["::/9"]}}]}]}`,
			`ingress[0], peer 0: except "::/9" is not within "10.0.0.0/8"`, "y/a > x/a tcp 80: deny"},
		{"a peer without a known field", `{"podSelector":{},"ingress":[{"from":[{}]}]}`, `ingress[0], peer 0: it has no field that is known`, "y/a > x/a tcp 80: deny"},
		{"a peer with two", `{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8"},"podSelector":{}}]}]}`,
			`ingress[0], peer 0: ipBlock stands beside a selector`, "y/a > x/a tcp 80: deny"},
		{"unknown protocol", `{"podSelector":{},"ingress":[{"ports":[{"protocol":"QUIC"}]}]}`, `ingress[0].ports[0]: protocol "QUIC" is not known`, "y/a > x/a tcp 80: deny"},
		{"port 0", `{"podSelector":{},"ingress":[{"ports":[{"port":0}]}]}`, `ingress[0].ports[0]: ports 0 to 0 are not a range within 1 to 65535`, "y/a > x/a tcp 80: deny"},
		{"a range that ends before it starts", `{"podSelector":{},"ingress":[{"ports":[{"port":80,"endPort":79}]}]}`,
			`ingress[0].ports[0]: ports 80 to 79 are not a range within 1 to 65535`, "y/a > x/a tcp 80: deny"},
		{"endPort alone", `{"podSelector":{},"ingress":[{"ports":[{"endPort":79}]}]}`, `ingress[0].ports[0]: endPort needs port`, "y/a > x/a tcp 79: deny"},
		{"endPort of a name", `{"podSelector":{},"ingress":[{"ports":[{"port":"http","endPort":79}]}]}`,
			`ingress[0].ports[0]: endPort needs a number, and port is "http"`, "y/a > x/a tcp 80: deny"},
		{"unknown direction", `{"podSelector":{},"policyTypes":["Ingress","Sideways"],"ingress":[{}]}`, `policyTypes: "Sideways" is not known`, "y/a > x/a tcp 80: deny\nx/a > y/a tcp 80: deny"},
		{"unknown condition of a port", `{"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Ingress"],"ingress":[{"ports":[{"icmp":{"type":8}}]}]}`,
			`json: unknown field "icmp"`, "y/a > x/a tcp 80: deny\ny/a > x/b tcp 80: accept\nx/a > y/a tcp 80: accept"},
		{"unknown condition of the subject", `{"podSelector":{"matchFields":[]},"ingress":[{}]}`, `json: unknown field "matchFields"`, "y/a > x/b tcp 80: deny\nx/a > y/a tcp 80: deny"},
		{"egress that cannot be read closes egress", `{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"x"}}]}]}`,
			`egress[0], peer 0: CIDR "x": netip.ParsePrefix("x"): no '/'`, "x/a > y/a tcp 80: deny"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := world(t, "x/bad "+c.spec)
			s.check(t, c.probes)
			want := "networkpolicy x/bad: " + c.problem + "; the policy isolates its pods and allows nothing"
			if got := Compile(s).Problems; len(got) != 1 || got[0].String() != want {
				t.Errorf("got problems %q, want %q", got, want)
			}
		})
	}
}

// A broken policy does not restrict what other policies allow.
func TestBrokenBesideOthers(t *testing.T) {
	world(t, `x/bad {"podSelector":{},"ingress":[{"ports":[{"port":0}]}]}`, `x/good {"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`).check(t, `
		y/a > x/a tcp 80: accept
		y/a > x/a tcp 81: deny`)
}

func TestParseRefusesWhatHasNoName(t *testing.T) {
	for _, text := range []string{`{`, `{}`, `{"metadata":{"name":"a"}}`, `{"metadata":{"name":7}}`} {
		if p, err := ParseNetworkPolicy([]byte(text)); err == nil || p.Name != "" && p.Namespace != "" {
			t.Errorf("%s: got %+v, %v", text, p, err)
		}
	}
	_, err := ParseNetworkPolicy([]byte(`{"metadata":{"namespace":"x","name":"a"},"spec":{"podSelector":7}}`))
	if err == nil || !strings.HasPrefix(err.Error(), "read networkpolicy x/a: ") {
		t.Errorf("got %v, want an error with the policy's name", err)
	}
}

// The program does not depend on the order of the state's lists.
func TestOrderDoesNotMatter(t *testing.T) {
	policies := []string{checklist[2].policies[0], checklist[2].policies[1], `x/3 {"podSelector":{},"egress":[{"ports":[{"port":"http"}]}]}`}
	want := Compile(world(t, policies...)).String()
	s := world(t, policies[2], policies[1], policies[0])
	for i, j := 0, len(s.Pods)-1; i < j; i, j = i+1, j-1 {
		s.Pods[i], s.Pods[j] = s.Pods[j], s.Pods[i]
	}
	s.Namespaces[0], s.Namespaces[2] = s.Namespaces[2], s.Namespaces[0]
	if got := Compile(s).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A Sequence compiles each state as if it were the first one.
func TestSequence(t *testing.T) {
	g := policytest.NewGenerator(5, policytest.Small)
	var q Sequence
	for range 300 {
		s, err := stateOf(g.Cluster)
		if err != nil {
			t.Fatal(err)
		}
		s.Node = s.Nodes[0].Name
		g.Shuffle(len(s.Pods)/3, func(i, j int) { s.Pods[i], s.Pods[j] = s.Pods[j], s.Pods[i] })
		if got, want := q.Decider(&s).Program.String(), Compile(&s).String(); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		g.Change()
	}
}
