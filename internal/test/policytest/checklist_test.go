// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import "testing"

// Rows with the same number test one promise of the API. The answers follow the API's documentation
// or the choices in the package comment. Numbers are missing where one probe cannot tell: that a
// change of labels counts at once (13, which TestPlantedBugsAreFound tests), that a deny is a drop
// (9), replies and established connections (21, 24), fragments (26), and what happens before the
// first packet, without the agent, or on further interfaces (28 to 30).
func TestSelectionAndDefaults(t *testing.T) { run(t, selectionRows) }

var selectionRows = []row{
	{1, "no policy selects the pod", []string{`{"podSelector":{"matchLabels":{"app":"other"}}}`},
		[]string{"yes a/db a/web TCP/80", "yes world a/web UDP/1", "yes6 a/web world SCTP/9", "yes b/web a/web ICMP"}},
	{2, "isolated for ingress, not for egress", []string{`{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Ingress"]}`},
		[]string{"no a/db a/web TCP/80", "no world a/web TCP/80", "yes a/web a/db TCP/80", "yes a/web world TCP/80", "yes a/db b/web TCP/80"}},
	{2, "isolated for egress, not for ingress", []string{`{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Egress"]}`},
		[]string{"yes a/db a/web TCP/80", "yes world a/web TCP/80", "no a/web a/db TCP/80", "no a/web world TCP/80", "no a/web n1 TCP/80", "yes b/web a/db TCP/80"}},
	{2, "policies add up", []string{
		`{"podSelector":{},"policyTypes":["Ingress"]}`,
		`{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}]}]}`,
		`{"podSelector":{},"ingress":[{"ports":[{"port":81}]},{"ports":[{"port":82}]}]}`,
	}, []string{"yes a/db a/web TCP/80", "no b/web a/web TCP/80", "yes b/web a/web TCP/81", "yes world a/db TCP/82", "no world a/db TCP/80"}},
	{3, "no policyTypes, no egress rules: ingress only", []string{`{"podSelector":{},"egress":[]}`},
		[]string{"no b/web a/web TCP/80", "yes a/web b/web TCP/80"}},
	{3, "no policyTypes, an egress rule: both", []string{`{"podSelector":{},"egress":[{"ports":[{"port":80}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes a/web b/web TCP/80", "no a/web b/web TCP/81"}},
	{3, "Egress alone, no rules", []string{`{"podSelector":{},"policyTypes":["Egress"]}`},
		[]string{"yes b/web a/web TCP/80", "no a/web b/web TCP/80"}},
	{3, "rules of a direction that policyTypes leaves out", []string{`{"podSelector":{},"policyTypes":["Ingress"],"ingress":[{}],"egress":[{"ports":[{"port":1}]}]}`},
		[]string{"yes b/web a/web TCP/80", "yes a/web b/web TCP/80"}},
	{4, "an empty podSelector selects the namespace", []string{`{"podSelector":{},"ingress":[]}`},
		[]string{"no b/web a/web TCP/80", "no b/web a/db TCP/80", "yes a/web b/web TCP/80", "yes a/web c/bare TCP/80"}},
	{4, "an empty rule allows everything", []string{`{"podSelector":{},"ingress":[{}]}`},
		[]string{"yes b/web a/web TCP/80", "yes world a/web SCTP/80", "yes6 n2 a/db ICMP"}},
	{5, "an empty from is any source", []string{`{"podSelector":{},"ingress":[{"from":[],"ports":[{"port":80}]}]}`},
		[]string{"yes b/web a/web TCP/80", "yes world a/web TCP/80", "yes n2 a/web TCP/80", "no world a/web TCP/81"}},
	{5, "no ports is every protocol", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`},
		[]string{"yes b/web a/web SCTP/9", "yes b/web a/web UDP/9", "yes b/web a/web ICMP", "no world a/web ICMP"}},
	{6, "both sides must allow", []string{
		`in b: {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{}}],"ports":[{"port":80},{"port":81}]}]}`,
		`{"podSelector":{},"ingress":[{"ports":[{"port":81},{"port":82}]}]}`,
	}, []string{"no b/web a/web TCP/80", "yes b/web a/web TCP/81", "no b/web a/web TCP/82", "yes b/web c/bare TCP/80"}},
	{7, "a pod reaches itself", []string{`{"podSelector":{},"policyTypes":["Ingress","Egress"]}`},
		[]string{"yes a/web a/web TCP/80", "yes6 a/web a/web UDP/9"}},
	{8, "finished pods are no peers", []string{`{"podSelector":{},"ingress":[{"from":[{"podSelector":{}}]}],"egress":[{"to":[{"podSelector":{}}]}]}`},
		[]string{"no c/bare a/web TCP/80", "no 10.0.0.8 a/web TCP/80", "no6 fd00::9 a/web TCP/80", "no a/web c/bare TCP/80", "no a/web 10.0.0.8 TCP/80"}},
	{8, "an address reused is its new pod's", []string{
		`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"DoesNotExist"}]}}]}],"egress":[{"ports":[{"port":1}]}]}`},
		[]string{"yes c/bare a/web TCP/80", "yes c/bare b/web TCP/80", "no6 fd00::9 a/web TCP/80"}},
	{8, "a terminating pod is a peer, and isolated", []string{
		`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"y"}}}]}]}`, `in b: {"podSelector":{}}`},
		[]string{"yes b/web a/web TCP/80", "no a/web b/web TCP/80"}},
}

func TestPeers(t *testing.T) { run(t, peerRows) }

var peerRows = []row{
	{10, "podSelector alone is the policy's namespace", []string{`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}]}]}`},
		[]string{"yes a/web a/db TCP/80", "no b/web a/db TCP/80", "no a/db a/web TCP/80"}},
	{10, "namespaceSelector alone is all pods there", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"y"}}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no a/db a/web TCP/80", "no c/bare a/web TCP/80", "no world a/web TCP/80"}},
	{10, "labels of a namespace are not labels of its pods", []string{`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"team":"x"}}}]}]}`, `in b: {"podSelector":{"matchLabels":{"team":"y"}}}`},
		[]string{"no a/db a/web TCP/80", "yes a/web b/web TCP/80"}},
	{10, "both in one element are AND", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"y"}},"podSelector":{"matchLabels":{"app":"db"}}}]}]}`},
		[]string{"no b/web a/web TCP/80", "no a/db a/web TCP/80"}},
	{10, "two elements are OR", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"y"}}},{"podSelector":{"matchLabels":{"app":"db"}}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "yes a/db a/web TCP/80", "no c/bare a/web TCP/80"}},
	{10, "an empty namespaceSelector is all pods, not the world", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "yes6 c/bare a/web TCP/80", "no world a/web TCP/80", "no n2 a/web TCP/80"}},
	{10, "egress peers are the same", []string{`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}]}]}`},
		[]string{"yes a/db b/web TCP/80", "yes a/db a/web TCP/80", "no a/web c/bare TCP/80", "no a/db world TCP/80"}},
	{11, "In", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"In","values":["z","y"]}]}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no c/bare a/web TCP/80", "no a/db a/web TCP/80"}},
	{11, "NotIn matches a missing key", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"NotIn","values":["y"]}]}}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes c/bare a/web TCP/80", "yes a/db a/web TCP/80"}},
	{11, "NotIn, of a pod's labels", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["front"]}]}}]}]}`},
		[]string{"no b/web a/db TCP/80", "yes a/web a/db TCP/80"}},
	{11, "Exists", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"Exists"}]}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no c/bare a/web TCP/80"}},
	{11, "DoesNotExist matches a missing key", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"DoesNotExist"}]}}]}]}`},
		[]string{"no b/web a/web TCP/80", "yes c/bare a/web TCP/80"}},
	{11, "expressions and labels are AND", []string{`{"podSelector":{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"Exists"}]}}`},
		[]string{"yes b/web a/web TCP/80"}},
	{12, "the label of a namespace's name", []string{`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"c"}}}]}]}`},
		[]string{"yes c/bare a/web TCP/80", "no b/web a/web TCP/80"}},
	{14, "ipBlock with an except", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"203.0.113.0/24","except":["203.0.113.0/30","203.0.113.4/30"]}}]}]}`},
		[]string{"no world a/web TCP/80", "yes 203.0.113.8 a/web TCP/80", "no 203.0.114.1 a/web TCP/80", "no b/web a/web TCP/80"}},
	{14, "excepted here, allowed by another block", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"203.0.113.0/24","except":["203.0.113.0/28"]}}]},{"from":[{"ipBlock":{"cidr":"203.0.113.7/32"}}]}]}`},
		[]string{"yes world a/web TCP/80", "no 203.0.113.8 a/web TCP/80"}},
	{14, "excepted here, allowed by a selector", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.0/16"]}},{"podSelector":{"matchLabels":{"app":"db"}}}]}]}`},
		[]string{"yes a/db a/web TCP/80", "no b/web a/web TCP/80", "yes 10.1.0.1 a/web TCP/80"}},
	{14, "pod addresses match, of the block's family only", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"0.0.0.0/0"}}]}]}`},
		[]string{"yes b/web a/web TCP/80", "yes n2 a/web TCP/80", "yes world a/web TCP/80", "no6 b/web a/web TCP/80", "no6 world a/web TCP/80"}},
	{14, "IPv6", []string{`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"2001:db8::/32","except":["2001:db8:1::/48"]}}]}]}`},
		[]string{"yes6 a/web world TCP/80", "no a/web world TCP/80", "no6 a/web 2001:db8:1::7 TCP/80", "no6 a/web a/db TCP/80"}},
	{14, "host bits of the block do not count", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"203.0.113.99/24"}}]}]}`},
		[]string{"yes world a/web TCP/80"}},
	{15, "a pod with hostNetwork is no peer by labels", []string{`{"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}]}]}`},
		[]string{"yes a/web a/db TCP/80", "no n1 a/db TCP/80"}},
	{15, "its source is the node's address", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.168.0.1/32"}}]}]}`},
		[]string{"yes n1 a/db TCP/80", "no b/web a/db TCP/80"}},
	{15, "through a tunnel its source is another address", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.168.0.2/32"}}]}]}`},
		[]string{"yes n2 a/web TCP/80", "no 10.250.2.0 a/web TCP/80", "no 10.250.2.1 a/web TCP/80"}},
	{15, "and a block with both has both", []string{`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.168.0.2/32"}},{"ipBlock":{"cidr":"10.250.2.0/32"}}]}]}`},
		[]string{"yes n2 a/web TCP/80", "yes 10.250.2.0 a/web TCP/80", "no 10.250.2.1 a/web TCP/80"}},
}

func TestPorts(t *testing.T) { run(t, portRows) }

var portRows = []row{
	{16, "the default protocol is TCP", []string{`{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no b/web a/web UDP/80", "no b/web a/web SCTP/80", "no b/web a/web TCP/81", "no b/web a/web ICMP"}},
	{16, "a protocol without a port", []string{`{"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP"}]}]}`},
		[]string{"yes b/web a/web UDP/80", "no b/web a/web TCP/80", "no b/web a/web ICMP"}},
	{16, "UDP does not open TCP", []string{`{"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP","port":80}]}]}`},
		[]string{"yes b/web a/web UDP/80", "no b/web a/web TCP/80"}},
	{17, "a name is each selected pod's port", []string{`{"podSelector":{},"ingress":[{"ports":[{"port":"http"}]}]}`},
		[]string{"yes b/web a/web TCP/80", "no b/web a/web TCP/8080", "yes b/web a/db TCP/8080", "no b/web a/db TCP/80"}},
	{17, "egress: a name is the destination's port", []string{`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":"http"}]}]}`},
		[]string{"yes a/web a/db TCP/8080", "no a/web a/db TCP/80", "yes a/web b/web TCP/81", "no a/web b/web TCP/80", "no a/web c/bare TCP/80", "no a/web world TCP/80", "no a/web n1 TCP/80"}},
	{17, "a name under another protocol", []string{`{"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP","port":"http"},{"port":"dns"}]}]}`},
		[]string{"no b/web a/web UDP/80", "no b/web a/web TCP/80", "no b/web a/web TCP/53", "no b/web a/web UDP/53"}},
	{17, "a name with its protocol", []string{`{"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP","port":"dns"}]}]}`},
		[]string{"yes b/web a/web UDP/53", "no b/web a/db UDP/53"}},
	{17, "a name of a sidecar, not of an init container", []string{`{"podSelector":{},"ingress":[{"ports":[{"port":"setup"},{"port":"mesh"}]}]}`},
		[]string{"no b/web a/web TCP/82", "yes b/web a/web TCP/83"}},
	{18, "endPort is included", []string{`{"podSelector":{},"ingress":[{"ports":[{"port":80,"endPort":82}]}]}`},
		[]string{"no b/web a/web TCP/79", "yes b/web a/web TCP/80", "yes b/web a/web TCP/81", "yes b/web a/web TCP/82", "no b/web a/web TCP/83", "no b/web a/web UDP/81"}},
	{19, "SCTP is not TCP", []string{`{"podSelector":{},"ingress":[{"ports":[{"protocol":"SCTP","port":80}]}]}`},
		[]string{"yes b/web a/web SCTP/80", "no b/web a/web TCP/80", "no b/web a/web SCTP/81"}},
	{20, "the port is the pod's", []string{`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":8080}]}]}`},
		[]string{"yes a/web a/db TCP/8080", "no a/web a/db TCP/80"}},
}

func TestTraffic(t *testing.T) { run(t, trafficRows) }

var deny = []string{`{"podSelector":{},"policyTypes":["Ingress","Egress"]}`}

var trafficRows = []row{
	{22, "the pod's node gets in, and the pod does not get out to it", deny,
		[]string{"yes n1 a/web TCP/80", "yes6 n1 a/web ICMP", "no a/web n1 TCP/80", "yes n2 a/db UDP/53"}},
	{22, "a pod of the same node is not the node", deny, []string{"no c/bare a/web TCP/80"}},
	{23, "another node is like the world", deny, []string{"no n2 a/web TCP/80", "no6 n1 a/db TCP/80"}},
	{25, "ICMP is isolated too", deny, []string{"no b/web a/web ICMP", "no6 a/web world ICMP"}},
	{27, "no policy selects a pod with hostNetwork", deny, []string{"yes world n1 TCP/80", "yes n1 world TCP/80", "yes b/web n1 TCP/80", "yes n1 n2 TCP/80"}},
}
