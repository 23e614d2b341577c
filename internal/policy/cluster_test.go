// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"
)

// cluster is a policy of the tier Admin or Baseline for all pods of namespace x.
func cluster(name, tier string, priority int, rules string) string {
	return fmt.Sprintf(`%s {"tier":%q,"priority":%d,"subject":{"namespaces":{"matchLabels":{"ns":"x"}}},%s}`, name, tier, priority, rules)
}

const fromY = `"from":[{"namespaces":{"matchLabels":{"ns":"y"}}}]`

// These are the lines of the checklist about ClusterNetworkPolicy.
func TestChecklistOfTheCluster(t *testing.T) {
	denyY := `"ingress":[{"action":"Deny",` + fromY + `}]`
	acceptY := `"ingress":[{"action":"Accept",` + fromY + `}]`
	passY := `"ingress":[{"action":"Pass",` + fromY + `}]`
	open, closed := `x/p {"podSelector":{},"ingress":[{}]}`, `x/p {"podSelector":{}}`
	for _, c := range []struct {
		name     string
		policies []string
		probes   string
	}{
		{"31 Admin denies what a NetworkPolicy allows", []string{cluster("c", "Admin", 1, denyY), open}, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept"},
		{"31 Admin accepts what a NetworkPolicy denies", []string{cluster("c", "Admin", 1, acceptY), closed}, "y/a > x/a tcp 80: accept\nz/a > x/a tcp 80: deny"},
		{"31 the lower priority wins", []string{cluster("a", "Admin", 9, denyY), cluster("b", "Admin", 8, acceptY)}, "y/a > x/a tcp 80: accept"},
		{"31 the first rule wins", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Accept",`+fromY+`,"protocols":[{"tcp":{"destinationPort":{"number":80}}}]},{"action":"Deny",`+fromY+`}]`)}, `
			y/a > x/a tcp 80: accept
			y/a > x/a tcp 81: deny`},
		{"31 Pass in Admin goes to the NetworkPolicies", []string{cluster("a", "Admin", 1, passY), cluster("b", "Admin", 2, denyY), open}, "y/a > x/a tcp 80: accept"},
		{"31 Pass in Admin goes to what isolates", []string{cluster("a", "Admin", 1, passY), cluster("b", "Admin", 2, acceptY), closed}, "y/a > x/a tcp 80: deny"},
		{"31 Pass in Admin goes to Baseline", []string{cluster("a", "Admin", 1, passY), cluster("b", "Admin", 2, acceptY), cluster("c", "Baseline", 1, denyY)}, "y/a > x/a tcp 80: deny"},
		{"31 Pass in Baseline ends", []string{cluster("a", "Baseline", 1, passY), cluster("b", "Baseline", 2, denyY)}, "y/a > x/a tcp 80: accept"},
		{"31 Baseline denies an open pod", []string{cluster("c", "Baseline", 1, denyY)}, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept\nx/a > y/a tcp 80: accept"},
		{"31 Baseline cannot accept for an isolated pod", []string{cluster("c", "Baseline", 1, acceptY), closed}, "y/a > x/a tcp 80: deny"},
		{"31 Baseline cannot deny what a NetworkPolicy allows", []string{cluster("c", "Baseline", 1, denyY), open}, "y/a > x/a tcp 80: accept"},
		{"31 a pod does not reach itself through its Service, and its node reaches it", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}],"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]`)}, `
			x/a > x/a tcp 80: deny
			n1 > x/a tcp 80: accept
			x/a > x/b tcp 80: deny`},
		{"31 NetworkPolicies do not keep a pod from itself, before Baseline", []string{cluster("c", "Baseline", 1, `"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]`), `x/p {"podSelector":{"matchLabels":{"pod":"a"}}}`}, `
			x/a > x/a tcp 80: accept
			x/b > x/b tcp 80: deny`},
		{"31 Pass lets a pod reach itself, although it is isolated", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Pass","from":[{"namespaces":{}}]}]`), closed}, "x/a > x/a tcp 80: accept"},
		{"32 25 rules of 25 peers", []string{cluster("c", "Admin", 1, `"ingress":[`+strings.Repeat(`{"action":"Pass","from":[{"namespaces":{"matchLabels":{"ns":"z"}}}]},`, 24)+
			`{"action":"Deny","from":[`+strings.Repeat(`{"namespaces":{"matchLabels":{"ns":"q"}}},`, 24)+`{"namespaces":{"matchLabels":{"ns":"y"}}}]}]`)}, `
			z/a > x/a tcp 80: accept
			y/a > x/a tcp 80: deny`},
		{"33 pods", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Deny","from":[{"pods":{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchLabels":{"pod":"b"}}}}]}]`)}, `
			y/b > x/a tcp 80: deny
			y/a > x/a tcp 80: accept
			z/b > x/a tcp 80: accept`},
		{"33 nodes, by their addresses", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"2"}}}]}]`)}, `
			x/a > n2 tcp 80: deny
			x/a > n1 tcp 80: accept`},
		{"33 nodes, by what they have for their pods", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"2"}}}]}]`)}, `
			x/a > 10.244.2.0 tcp 10250: deny
			x/a > 10.244.2.1 tcp 10250: deny
			x/a > fd02:2::1 tcp 10250: deny
			x/a > 10.244.2.2 tcp 10250: accept
			x/a > 10.244.1.1 tcp 10250: accept
			x/a > fe80::1 tcp 10250: accept`},
		{"33 this node, by any of its addresses", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"1"}}}]}]`)}, `
			x/a > 10.244.1.1 tcp 10250: deny
			x/a > 172.17.0.1 tcp 10250: deny
			x/a > 169.254.20.10 tcp 10250: deny
			x/a > fe80::1 tcp 10250: deny
			x/a > x/b tcp 10250: accept`},
		{"33 this node, by what everybody on a link hears", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"1"}}}]}]`)}, `
			x/a > 255.255.255.255 udp 53: deny
			x/a > 224.0.0.1 udp 53: deny
			x/a > 239.255.255.255 udp 53: deny
			x/a > 240.0.0.1 udp 53: accept
			x/a > ff02::1 udp 53: deny
			x/a > ff01::1 udp 53: deny`},
		{"33 another node is not on the link", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"2"}}}]}]`)}, `
			x/a > 255.255.255.255 udp 53: accept
			x/a > 224.0.0.1 udp 53: accept
			x/a > ff02::1 udp 53: accept`},
		{"33 this node as well", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"nodes":{}}]}]`)}, "x/a > n1 tcp 80: deny\nx/a > n2 tcp 80: deny"},
		{"33 networks, within the cluster as well", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"networks":["10.1.2.0/24","fd01::2:0/112","192.0.2.0/24"]}]}]`)}, `
			x/a > y/a tcp 80: deny
			x/a > z/a tcp 80: accept
			x/a > 192.0.2.1 tcp 80: deny`},
		{"33 domainNames fail closed", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Accept","to":[{"domainNames":["example.org"]}]},{"action":"Deny","to":[{"networks":["192.0.2.0/24"]}]}]`)}, "x/a > 192.0.2.1 tcp 80: deny"},
		{"34 protocols", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Deny",`+fromY+`,"protocols":[{"tcp":{"destinationPort":{"range":{"start":80,"end":82}}}},{"udp":{}},{"sctp":{"destinationPort":{"number":7}}}]}]`)}, `
			y/a > x/a tcp 79: accept
			y/a > x/a tcp 80: deny
			y/a > x/a tcp 82: deny
			y/a > x/a udp 1: deny
			y/a > x/a sctp 7: deny
			y/a > x/a sctp 8: accept`},
		{"34 a named port for ingress, of any protocol", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Deny",`+fromY+`,"protocols":[{"destinationNamedPort":"dns"}]}]`)}, `
			y/a > x/a udp 53: deny
			y/a > x/a tcp 53: accept`},
		{"34 a named port for egress is each destination's", []string{cluster("c", "Admin", 1, `"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[{"destinationNamedPort":"http"}]}]`)}, `
			x/a > y/a tcp 8080: deny
			x/a > y/a tcp 80: accept
			x/a > z/a tcp 80: deny`},
		{"35 ingress from networks is not known", []string{cluster("c", "Admin", 1, `"ingress":[{"action":"Accept","from":[{"networks":["192.0.2.0/24"]}]}]`), cluster("d", "Baseline", 1, denyY)}, "y/a > x/a tcp 80: deny\n192.0.2.1 > x/a tcp 80: accept"},
		{"36 an empty subject is all pods", []string{`c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`}, "z/a > x/a tcp 80: deny\nz/a > y/a tcp 80: deny\n192.0.2.1 > x/a tcp 80: accept"},
		{"36 without pods in the node's network", []string{`c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["192.0.2.0/24"]}]}]}`}, "x/host > 192.0.2.1 tcp 80: accept"},
		{"as the switch: from my own namespace", []string{`c {"tier":"Baseline","priority":1,"subject":{"namespaces":{"matchLabels":{"ns":"x"}}},"ingress":[
			{"action":"Accept","from":[{"namespaces":{"matchLabels":{"kubernetes.io/metadata.name":"x"}}}]},{"action":"Deny","from":[{"namespaces":{}}]}]}`}, `
			x/b > x/a tcp 80: accept
			y/b > x/a tcp 80: deny`},
	} {
		t.Run(c.name, func(t *testing.T) { world(t, c.policies...).check(t, c.probes) })
	}
}

// As the API says: what cannot be understood accepts nothing, or denies everything.
func TestBrokenClusterPolicies(t *testing.T) {
	for _, c := range []struct{ name, policy, problem, probes string }{
		{"tier", `c {"tier":"Top","subject":{"namespaces":{}}}`, `tier "Top" is not known; the policy denies its pods everything`, "y/a > x/a tcp 80: deny\nx/a > 192.0.2.1 tcp 80: deny"},
		{"subject", `c {"tier":"Admin","subject":{}}`, `subject: it needs either namespaces or pods; the policy denies its pods everything`, "y/a > x/a tcp 80: deny\nx/a > 192.0.2.1 tcp 80: deny"},
		{"subject of a later version", `c {"tier":"Admin","subject":{"namespaces":{"matchLabels":{"ns":"x"}},"serviceAccounts":{}}}`,
			`subject: json: unknown field "serviceAccounts"; the policy denies its pods everything`, "y/a > x/a tcp 80: deny\nz/a > y/a tcp 80: deny"},
		{"field beside Accept", cluster("c", "Admin", 1, `"log":true,"ingress":[{"action":"Accept",`+fromY+`}]`), `ingress[0]: json: unknown field "log"; the rule matches nothing`, "z/a > x/a tcp 80: accept\nx/a > y/a tcp 80: accept"},
		{"field beside Deny", cluster("c", "Admin", 1, `"log":true,"ingress":[{"action":"Deny",`+fromY+`}]`), `ingress[0]: json: unknown field "log"; the rule denies everything`, "z/a > x/a tcp 80: deny\nx/a > y/a tcp 80: accept"},
		{"field of Accept", cluster("c", "Admin", 1, `"ingress":[{"action":"Accept","log":true,"from":[{"namespaces":{}}]},{"action":"Deny",`+fromY+`}]`),
			`ingress[0]: json: unknown field "log"; the rule matches nothing`, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept"},
		{"peer of a later version", cluster("c", "Admin", 1, `"ingress":[{"name":"n","action":"Accept","from":[{"namespaces":{}},{"serviceAccounts":{}}]},{"action":"Deny",`+fromY+`}]`),
			`ingress[0] n: json: unknown field "serviceAccounts"; the rule matches nothing`, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept\nx/a > y/a tcp 80: accept"},
		{"peer of a later version of Pass", cluster("c", "Admin", 1, `"egress":[{"action":"Pass","to":[{"serviceAccounts":{}}]}]`),
			`egress[0]: json: unknown field "serviceAccounts"; the rule denies everything`, "x/a > y/a tcp 80: deny\ny/a > x/a tcp 80: accept"},
		{"protocol of a later version", cluster("c", "Admin", 1, `"ingress":[{"action":"Accept","from":[{"namespaces":{}}],"protocols":[{"icmp":{"type":8}}]},{"action":"Deny",`+fromY+`}]`),
			`ingress[0]: json: unknown field "icmp"; the rule matches nothing`, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept"},
		{"rule of another type", cluster("c", "Admin", 1, `"ingress":["Accept",{"action":"Accept",`+fromY+`}]`),
			`ingress[0]: json: cannot unmarshal string into Go value of type policy.plain; the rule denies everything`, "y/a > x/a tcp 80: deny\nx/a > y/a tcp 80: accept"},
		{"action", cluster("c", "Admin", 1, `"ingress":[{"action":"Log",`+fromY+`}]`), `ingress[0]: action "Log" is not known; the rule denies everything`, "z/a > x/a tcp 80: deny"},
		{"peer of Accept", cluster("c", "Admin", 1, `"ingress":[{"name":"n","action":"Accept","from":[{}]}]`), `ingress[0] n: peer 0: it has 0 known fields, want 1; the rule matches nothing`, "z/a > x/a tcp 80: accept"},
		{"peer of Deny", cluster("c", "Admin", 1, `"ingress":[{"action":"Deny","from":[{}]}]`), `ingress[0]: peer 0: it has 0 known fields, want 1; the rule denies everything`, "z/a > x/a tcp 80: deny"},
		{"peer of Pass", cluster("c", "Baseline", 1, `"egress":[{"action":"Pass","to":[{"networks":["x"]}]}]`), `egress[0]: peer 0: CIDR "x": netip.ParsePrefix("x"): no '/'; the rule denies everything`, "x/a > z/a tcp 80: deny"},
		{"no peers", cluster("c", "Admin", 1, `"ingress":[{"action":"Deny","from":[]}]`), `ingress[0]: it has no peers; the rule denies everything`, "z/a > x/a tcp 80: deny"},
		{"protocol", cluster("c", "Admin", 1, `"ingress":[{"action":"Deny",`+fromY+`,"protocols":[{}]}]`), `ingress[0]: protocols[0]: a protocol has 0 known fields, want 1; the rule denies everything`, "z/a > x/a tcp 80: deny"},
		{"port", cluster("c", "Admin", 1, `"ingress":[{"action":"Accept",`+fromY+`,"protocols":[{"tcp":{"destinationPort":{}}}]},{"action":"Deny",`+fromY+`}]`),
			`ingress[0]: protocols[0]: a destinationPort needs a number or a range; the rule matches nothing`, "y/a > x/a tcp 80: deny\nz/a > x/a tcp 80: accept"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := world(t, c.policy)
			s.check(t, c.probes)
			if got := Compile(s).Problems; len(got) != 1 || got[0].String() != "clusternetworkpolicy c: "+c.problem {
				t.Errorf("got problems %q, want %q", got, c.problem)
			}
		})
	}
}
