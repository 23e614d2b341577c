// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import "testing"

const (
	everyPod = `"subject":{"namespaces":{}}`
	denyPods = `"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]`
)

func TestTiers(t *testing.T) { run(t, tierRows) }

var tierRows = []row{
	{31, "Deny in Admin is final", []string{`{"tier":"Admin","priority":1,` + everyPod + `,` + denyPods + `}`, `{"podSelector":{},"ingress":[{}]}`},
		[]string{"no b/web a/web TCP/80", "no b/web c/bare ICMP", "yes world a/web TCP/80", "yes n2 a/web TCP/80"}},
	{31, "Accept in Admin is final", []string{`{"tier":"Admin","priority":1,` + everyPod + `,"ingress":[{"action":"Accept","from":[{"namespaces":{}}]}]}`, `{"podSelector":{},"ingress":[]}`},
		[]string{"yes b/web a/web TCP/80", "no world a/web TCP/80"}},
	{31, "Accept of one side does not open the other", []string{`{"tier":"Admin","priority":1,` + everyPod + `,"egress":[{"action":"Accept","to":[{"namespaces":{}}]}]}`, `{"podSelector":{},"policyTypes":["Ingress","Egress"]}`},
		[]string{"no b/web a/web TCP/80", "no a/web a/db TCP/80", "yes a/web b/web TCP/80"}},
	{31, "Pass in Admin goes to the NetworkPolicies", []string{
		`{"tier":"Admin","priority":1,` + everyPod + `,"ingress":[{"action":"Pass","from":[{"namespaces":{"matchLabels":{"team":"x"}}}]},{"action":"Deny","from":[{"namespaces":{}}]}]}`,
		`{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":80}]}]}`,
	}, []string{"yes a/db a/web TCP/80", "no a/db a/web TCP/81", "yes a/web a/db TCP/81", "no b/web a/web TCP/80"}},
	{31, "Pass skips the rest of the tier, and Baseline decides", []string{
		`{"tier":"Admin","priority":1,` + everyPod + `,"ingress":[{"action":"Pass","from":[{"namespaces":{}}]}]}`,
		`{"tier":"Admin","priority":2,` + everyPod + `,"ingress":[{"action":"Accept","from":[{"namespaces":{}}]}]}`,
		`{"tier":"Baseline","priority":2,` + everyPod + `,` + denyPods + `}`,
	}, []string{"no b/web a/web TCP/80"}},
	{31, "NetworkPolicies are final for the pods that they select", []string{
		`{"tier":"Baseline","priority":1,` + everyPod + `,` + denyPods + `}`,
		`{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":80}]}]}`,
	}, []string{"yes b/web a/web TCP/80", "no b/web a/web TCP/81", "no b/web a/db TCP/80"}},
	{31, "a NetworkPolicy of the other direction leaves Baseline in force", []string{
		`{"tier":"Baseline","priority":1,` + everyPod + `,` + denyPods + `}`, `{"podSelector":{},"policyTypes":["Egress"],"egress":[{}]}`,
	}, []string{"no b/web a/web TCP/80"}},
	{31, "Pass in Baseline ends: allowed", []string{
		`{"tier":"Baseline","priority":1,` + everyPod + `,"ingress":[{"action":"Pass","from":[{"namespaces":{"matchLabels":{"team":"x"}}}]}]}`,
		`{"tier":"Baseline","priority":2,` + everyPod + `,` + denyPods + `}`,
	}, []string{"yes a/db a/web TCP/80", "no b/web a/web TCP/80"}},
	{31, "the lower number wins, in whatever order they are stored", []string{
		`{"tier":"Admin","priority":1000,` + everyPod + `,` + denyPods + `}`,
		`{"tier":"Admin","priority":0,` + everyPod + `,"ingress":[{"action":"Accept","from":[{"namespaces":{}}]}]}`,
	}, []string{"yes b/web a/web TCP/80"}},
	{31, "the first rule that matches wins", []string{`{"tier":"Admin","priority":1,` + everyPod + `,"ingress":[
		{"action":"Accept","from":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]},
		{"action":"Deny","from":[{"namespaces":{}}]},{"action":"Accept","from":[{"namespaces":{}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no b/web a/web TCP/81"}},
}

func TestClusterPeers(t *testing.T) { run(t, clusterPeerRows) }

const admin1 = `"tier":"Admin","priority":1,"subject":{"namespaces":{}}`

var clusterPeerRows = []row{
	{33, "pods", []string{`{` + admin1 + `,"ingress":[{"action":"Deny","from":[{"pods":{"namespaceSelector":{"matchLabels":{"team":"y"}},"podSelector":{"matchLabels":{"app":"web"}}}}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes a/web a/db TCP/80", "yes c/bare a/web TCP/80"}},
	{33, "a pod with hostNetwork is no peer by labels", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`},
		[]string{"no a/web a/db TCP/80", "yes a/web n1 TCP/80", "yes n1 a/db TCP/80"}},
	{33, "a finished pod is no peer", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`},
		[]string{"yes a/web 10.0.0.8 TCP/80", "no a/web c/bare TCP/80"}},
	{33, "nodes by their addresses", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"west"}}}]}]}`},
		[]string{"no a/web n2 TCP/80", "no6 a/web n2 TCP/80", "yes a/web n1 TCP/80", "yes a/web a/db TCP/80", "yes a/web world TCP/80"}},
	{33, "an empty nodes selector is all nodes", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"nodes":{}}]}]}`},
		[]string{"no a/web n2 TCP/80", "no a/web n1 TCP/80", "yes a/web world TCP/80"}},
	{33, "networks hit traffic inside the cluster too", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"networks":["10.0.0.0/8","2001:db8::/32"]}]}]}`},
		[]string{"no a/web a/db TCP/80", "yes6 a/web a/db TCP/80", "yes a/web world TCP/80", "no6 a/web world TCP/80", "no a/web a/web TCP/80", "yes6 a/web a/web TCP/80"}},
	{33, "several peers are OR", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"networks":["203.0.113.0/24"]},{"namespaces":{"matchLabels":{"team":"x"}}}]}]}`},
		[]string{"no a/web a/db TCP/80", "no a/web world TCP/80", "yes a/web b/web TCP/80"}},
	{33, "an unknown peer accepts nothing", []string{
		`{` + admin1 + `,"egress":[{"action":"Accept","to":[{},{"namespaces":{}}]}]}`,
		`{"tier":"Admin","priority":2,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`,
	}, []string{"no a/web a/db TCP/80", "yes a/web world TCP/80"}},
	{33, "an unknown peer of a Deny or Pass denies all", []string{
		`{"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"team":"x"}}},"egress":[{"action":"Deny","to":[{}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}]}`,
		`{"tier":"Admin","priority":2,"subject":{"namespaces":{"matchLabels":{"team":"y"}}},"egress":[{"action":"Pass","to":[{}]}]}`,
	}, []string{"no a/web world UDP/9", "no a/web b/web TCP/80", "no b/web a/web ICMP", "yes c/bare world TCP/80"}},
	{7, "through its Service, a pod reaches itself unless a cluster policy denies it", []string{`{` + admin1 + `,` + denyPods + `}`, `{"podSelector":{},"ingress":[{}]}`},
		[]string{"no a/web a/web TCP/80", "no6 c/bare c/bare TCP/80"}},
	{7, "whatever NetworkPolicies say, which decide before Baseline", []string{`{"tier":"Baseline","priority":1,` + everyPod + `,` + denyPods + `}`, `{"podSelector":{},"ingress":[]}`},
		[]string{"yes a/web a/web TCP/80", "no c/bare c/bare TCP/80"}},
	{33, "nodes by the addresses that they have for their pods", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"west"}}}]}]}`},
		[]string{"no a/web 10.250.2.0 TCP/80", "no a/web 10.250.2.1 TCP/80", "no6 a/web fd02:2::1 TCP/80", "yes a/web 10.250.2.2 TCP/80", "yes a/web 10.250.1.1 TCP/80"}},
	{33, "a field of a later version in a rule that accepts: the rule matches nothing", []string{
		`later spec.egress.0: {` + admin1 + `,"egress":[{"action":"Accept","to":[{"namespaces":{}}]},{"action":"Deny","to":[{"namespaces":{"matchLabels":{"team":"x"}}}]}]}`,
	}, []string{"no b/web a/web TCP/80", "yes a/web b/web TCP/80", "yes a/web world TCP/80"}},
	{33, "or anywhere in such a rule", []string{
		`later spec.egress.0.to.0.namespaces: {` + admin1 + `,"egress":[{"action":"Accept","to":[{"namespaces":{}}]},{"action":"Deny","to":[{"namespaces":{"matchLabels":{"team":"x"}}}]}]}`,
	}, []string{"no b/web a/web TCP/80", "yes a/web b/web TCP/80"}},
	{33, "in a rule that denies or passes: the rule denies its direction", []string{
		`later spec.ingress.0.from.0: {"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"team":"x"}}},"ingress":[{"action":"Pass","from":[{"namespaces":{}}]}]}`,
	}, []string{"no b/web a/web TCP/80", "no world a/web TCP/80", "yes a/web b/web TCP/80"}},
	{33, "beside the rules: each of them is closed", []string{
		`later spec: {` + admin1 + `,"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"team":"y"}}}]}],"egress":[{"action":"Accept","to":[{"namespaces":{}}]}]}`,
	}, []string{"no world a/web TCP/80", "yes a/web world TCP/80"}},
	{33, "in the subject: every pod is denied everything", []string{
		`later spec.subject.namespaces: {"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"team":"x"}}},"ingress":[{"action":"Accept","from":[{"namespaces":{}}]}]}`,
	}, []string{"no b/web c/bare TCP/80", "no a/web world TCP/80"}},
	{34, "numbers and ranges by protocol", []string{`{` + admin1 + `,"ingress":[{"action":"Deny","from":[{"namespaces":{}}],"protocols":[
		{"tcp":{"destinationPort":{"number":80}}},{"udp":{"destinationPort":{"range":{"start":80,"end":82}}}},{"sctp":{}}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes b/web a/web TCP/81", "yes b/web a/web UDP/79", "no b/web a/web UDP/80", "no b/web a/web UDP/82", "yes b/web a/web UDP/83", "no b/web a/web SCTP/7", "yes b/web a/web ICMP"}},
	{34, "a range includes both ends, out too", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[{"udp":{"destinationPort":{"range":{"start":80,"end":82}}}}]}]}`},
		[]string{"yes b/web a/web UDP/79", "no b/web a/web UDP/80", "no b/web a/web UDP/82", "yes b/web a/web UDP/83"}},
	{34, "a named port of the destination, of any protocol", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[{"destinationNamedPort":"http"},{"destinationNamedPort":"dns"}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes b/web a/web UDP/80", "no b/web a/web UDP/53", "yes b/web a/web TCP/53", "no b/web a/db TCP/8080", "yes b/web a/db TCP/80"}},
	{35, "no ingress peer is a node or a network", []string{`{` + admin1 + `,"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`},
		[]string{"yes world a/web TCP/80", "yes n2 a/web TCP/80", "yes n1 a/web TCP/80", "no b/web a/web TCP/80"}},
	{36, "an empty subject is every pod", []string{`{` + admin1 + `,"egress":[{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}]}`},
		[]string{"no a/web a/db TCP/80", "no b/web world TCP/80", "no c/bare n1 TCP/80", "yes n1 a/web TCP/80", "yes n1 world TCP/80"}},
	{36, "a subject by namespace and pod", []string{`{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},"egress":[{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}]}`},
		[]string{"no a/web a/db TCP/80", "no b/web world TCP/80", "yes a/db world TCP/80", "yes n1 world TCP/80"}},
	{22, "the pod's node gets in, also against Admin", []string{`{` + admin1 + `,"ingress":[{"action":"Deny","from":[{}]}]}`},
		[]string{"yes n1 a/web TCP/80", "no n2 a/web TCP/80"}},
}
