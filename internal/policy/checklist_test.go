// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"
)

// checklist is the semantics of Kubernetes' network policies, in 36 lines. Each case begins with
// the number of its line. Lines 24, 26, 28, 29 and 30 are about the kernel or about time; the cases
// here check what the program must contain for them.
var checklist = []struct {
	name     string
	policies []string
	probes   string
}{
	{"01 a pod that no policy selects is open", []string{`x/a {"podSelector":{"matchLabels":{"pod":"a"}}}`}, `
		z/a > x/a tcp 80: deny
		z/a > x/b tcp 80: accept
		x/b > z/a udp 53: accept
		x/b > 192.0.2.1 sctp 1: accept`},
	{"02 a policy isolates only its direction", []string{`x/a {"podSelector":{},"policyTypes":["Egress"]}`}, `
		x/a > z/a tcp 80: deny
		z/a > x/a tcp 80: accept`},
	{"02 rules of several policies add up", []string{
		`x/2 {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`,
		`x/1 {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"c"}}}]}]}`,
	}, `
		x/b > x/a tcp 80: accept
		x/c > x/a tcp 80: accept
		y/a > x/a tcp 80: deny
		x/a > x/b tcp 80: deny`},
	{"03 without policyTypes, ingress always", []string{`x/a {"podSelector":{}}`}, `
		y/a > x/a tcp 80: deny
		x/a > y/a tcp 80: accept`},
	{"03 without policyTypes, egress if it has rules", []string{`x/a {"podSelector":{},"egress":[{"ports":[{"port":80}]}]}`}, `
		y/a > x/a tcp 80: deny
		x/a > y/a tcp 80: accept
		x/a > y/a tcp 81: deny`},
	{"03 policyTypes alone denies", []string{`x/a {"podSelector":{},"policyTypes":["Egress","Ingress"]}`}, `
		x/a > y/a tcp 80: deny
		y/a > x/a tcp 80: deny`},
	{"04 an empty selector is the namespace", []string{`x/a {"podSelector":{}}`}, `
		y/a > x/c tcp 80: deny
		x/a > y/c tcp 80: accept`},
	{"04 no rules allow nothing, an empty rule everything", []string{
		`x/a {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[]}`,
		`x/b {"podSelector":{"matchLabels":{"pod":"b"}},"ingress":[{}]}`,
	}, `
		y/a > x/a tcp 80: deny
		y/a > x/b tcp 80: accept
		192.0.2.1 > x/b udp 7: accept`},
	{"05 an empty from is everybody, no ports are all", []string{`x/a {"podSelector":{},"ingress":[{"from":[]}]}`}, `
		192.0.2.1 > x/a sctp 9: accept
		192.0.2.1 > x/a icmp 8: accept
		192.0.2.1 > x/a gre 0: accept`},
	{"05 ports without peers are for everybody", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`}, `
		192.0.2.1 > x/a tcp 80: accept
		192.0.2.1 > x/a icmp 8: deny`},
	{"06 both ends must allow", []string{
		`x/a {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{}}]}]}`,
		`y/b {"podSelector":{"matchLabels":{"pod":"b"}}}`,
	}, `
		x/a > y/b tcp 80: deny
		x/a > y/a tcp 80: accept
		x/a > 192.0.2.1 tcp 80: deny`},
	{"07 a pod reaches itself", []string{`x/a {"podSelector":{},"policyTypes":["Ingress","Egress"]}`}, `
		x/a > x/a tcp 80: accept
		x/a > x/b tcp 80: deny`},
	{"09 a denial is a drop: there is no other verdict", []string{`x/a {"podSelector":{}}`}, `y/a > x/a tcp 80: deny`},
	{"10 podSelector alone is the policy's namespace", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`}, `
		x/b > x/a tcp 80: accept
		y/b > x/a tcp 80: deny`},
	{"10 namespaceSelector alone is all their pods", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"y"}}}]}]}`}, `
		y/a > x/a tcp 80: accept
		y/c > x/a tcp 80: accept
		z/c > x/a tcp 80: deny
		x/c > x/a tcp 80: deny`},
	{"10 both in one element must match", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`}, `
		y/b > x/a tcp 80: accept
		y/a > x/a tcp 80: deny
		x/b > x/a tcp 80: deny`},
	{"10 one of two elements must match", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"y"}}},{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`}, `
		y/a > x/a tcp 80: accept
		x/b > x/a tcp 80: accept
		x/c > x/a tcp 80: deny`},
	{"10 an empty namespaceSelector is all pods, not the world", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`}, `
		z/a > x/a tcp 80: accept
		192.0.2.1 > x/a tcp 80: deny
		10.0.0.2 > x/a tcp 80: deny`},
	{"11 In and Exists", []string{`x/a {"podSelector":{"matchExpressions":[{"key":"pod","operator":"In","values":["a","b"]}]},"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"pod","operator":"Exists"}]}}]}]}`}, `
		x/c > x/a tcp 80: accept
		y/c > x/a tcp 80: deny
		y/c > x/b tcp 80: deny
		y/c > x/c tcp 80: accept`},
	{"11 NotIn and DoesNotExist match without the label", []string{
		`x/a {"podSelector":{"matchExpressions":[{"key":"old","operator":"DoesNotExist"}]},"ingress":[{"from":[
			{"podSelector":{"matchExpressions":[{"key":"role","operator":"NotIn","values":["db"]},{"key":"pod","operator":"NotIn","values":["c"]}]}}]}]}`,
	}, `
		x/b > x/a tcp 80: accept
		x/c > x/a tcp 80: deny`},
	{"12 kubernetes.io/metadata.name", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"z"}}}]}]}`}, `
		z/a > x/a tcp 80: accept
		y/a > x/a tcp 80: deny`},
	{"14 an ipBlock whose numbers begin with zeros, which are decimal", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.000.002.000/024","except":["192.00.2.010/32"]}},{"ipBlock":{"cidr":"2001:0db8:0000::/032"}}]}]}`}, `
		192.0.2.1 > x/a tcp 80: accept
		192.0.2.10 > x/a tcp 80: deny
		192.0.2.8 > x/a tcp 80: accept
		192.0.3.1 > x/a tcp 80: deny
		2001:db8::1 > x/a tcp 80: accept`},
	{"14 several blocks are what each of them contains", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.0.2.0/25","except":["192.0.2.8/29"]}},{"ipBlock":{"cidr":"192.0.2.128/25"}},
		{"ipBlock":{"cidr":"192.0.2.8/32"}},{"ipBlock":{"cidr":"255.255.255.0/24"}},{"ipBlock":{"cidr":"::/8"}},{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`}, `
		192.0.2.7 > x/a tcp 80: accept
		192.0.2.8 > x/a tcp 80: accept
		192.0.2.9 > x/a tcp 80: deny
		192.0.2.15 > x/a tcp 80: deny
		192.0.2.16 > x/a tcp 80: accept
		192.0.2.255 > x/a tcp 80: accept
		192.0.3.0 > x/a tcp 80: deny
		255.255.255.255 > x/a tcp 80: accept
		::1 > x/a tcp 80: accept
		x/b > x/a tcp 80: accept
		x/c > x/a tcp 80: deny`},
	{"14 ipBlock, without its excepts", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"192.0.2.0/24","except":["192.0.2.128/25","192.0.2.0/32"]}},{"ipBlock":{"cidr":"2001:db8::/32","except":["2001:db8:1::/48"]}}]}]}`}, `
		192.0.2.1 > x/a tcp 80: accept
		192.0.2.127 > x/a tcp 80: accept
		192.0.2.0 > x/a tcp 80: deny
		192.0.2.128 > x/a tcp 80: deny
		192.0.2.255 > x/a tcp 80: deny
		192.0.3.0 > x/a tcp 80: deny
		2001:db8::1 > x/a tcp 80: accept
		2001:db8:1::1 > x/a tcp 80: deny
		2001:db8:2::1 > x/a tcp 80: accept
		y/a > x/a tcp 80: deny`},
	{"14 another rule allows what one excepts", []string{
		`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.1.0.0/16","except":["10.1.2.0/24"]}},{"ipBlock":{"cidr":"fd01::/64","except":["fd01::2:0/112"]}}]}]}`,
		`x/b {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.1.2.1/32"}},{"ipBlock":{"cidr":"fd01::2:1/128"}}]},
			{"to":[{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchLabels":{"pod":"c"}}}]}]}`,
	}, `
		x/a > z/a tcp 80: accept
		x/a > y/a tcp 80: accept
		x/a > y/b tcp 80: deny
		x/a > y/c tcp 80: accept`},
	{"14 ipBlock matches addresses of nodes", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/24"}},{"ipBlock":{"cidr":"fd00::/64"}}]}]}`}, `
		x/a > n1 tcp 80: accept
		x/a > n2 tcp 80: accept`},
	{"15 ipBlock with a node's address is not what comes from its tunnel", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.2/32"}},{"ipBlock":{"cidr":"fd00::2/128"}}]}]}`}, `
		n2 > x/a tcp 80: accept
		10.244.2.0 > x/a tcp 80: deny
		fd02:2:: > x/a tcp 80: deny`},
	{"15 an ipBlock with the source of its tunnel is", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.244.2.0/32"}}]}]}`}, `
		10.244.2.0 > x/a tcp 80: accept
		n2 > x/a tcp 80: deny`},
	{"15 no selector matches a pod in the node's network", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}]}`}, `
		x/b > x/a tcp 80: accept
		x/b > n1 tcp 80: deny`},
	{"16 the default protocol is TCP", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`}, `
		y/a > x/a tcp 80: accept
		y/a > x/a udp 80: deny
		y/a > x/a sctp 80: deny`},
	{"16 a protocol alone is all its ports", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP"}]}]}`}, `
		y/a > x/a udp 1: accept
		y/a > x/a udp 65535: accept
		y/a > x/a tcp 80: deny`},
	{"16 an empty port is all of TCP", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{}]}]}`}, `
		y/a > x/a tcp 7: accept
		y/a > x/a udp 7: deny`},
	{"17 a named port for ingress is the selected pod's", []string{`y/a {"podSelector":{},"ingress":[{"ports":[{"port":"http"}]}]}`, `x/a {"podSelector":{},"ingress":[{"ports":[{"port":"http"}]}]}`}, `
		z/a > y/a tcp 8080: accept
		z/a > y/a tcp 80: deny
		z/a > x/a tcp 80: accept
		z/a > x/a tcp 8080: deny`},
	{"17 a named port for egress is each destination's", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{}}],"ports":[{"port":"http"}]}]}`}, `
		x/a > y/a tcp 8080: accept
		x/a > y/a tcp 80: deny
		x/a > z/a tcp 80: accept
		x/a > z/a tcp 8080: deny
		x/a > 192.0.2.1 tcp 80: deny`},
	{"17 a name without peers is of all pods", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":"http"},{"port":443}]}]}`}, `
		x/a > y/a tcp 8080: accept
		x/a > y/a tcp 80: deny
		x/a > 192.0.2.1 tcp 80: deny
		x/a > 192.0.2.1 tcp 443: accept`},
	{"17 a name within an ipBlock", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.1.2.0/24"}},{"ipBlock":{"cidr":"fd01::2:0/112"}}],"ports":[{"port":"http"}]}]}`}, `
		x/a > y/a tcp 8080: accept
		x/a > y/a tcp 80: deny
		x/a > z/a tcp 80: deny`},
	{"17 a name that is absent, or of another protocol, matches nothing", []string{
		`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":"none"},{"port":"http","protocol":"UDP"}]}]}`,
		`y/a {"podSelector":{},"ingress":[{"ports":[{"port":"none"},{"port":"http","protocol":"UDP"}]}]}`,
	}, `
		x/a > z/a tcp 80: deny
		x/a > z/a udp 80: deny
		z/a > y/a udp 8080: deny
		z/a > y/a tcp 8080: deny`},
	{"18 endPort is inclusive", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{"port":80,"endPort":90}]}]}`}, `
		y/a > x/a tcp 79: deny
		y/a > x/a tcp 80: accept
		y/a > x/a tcp 90: accept
		y/a > x/a tcp 91: deny
		y/a > x/a udp 85: deny`},
	{"19 SCTP isolates, and is not TCP", []string{`x/a {"podSelector":{},"ingress":[{"ports":[{"port":80,"protocol":"SCTP"}]}]}`}, `
		y/a > x/a sctp 80: accept
		y/a > x/a sctp 81: deny
		y/a > x/a tcp 80: deny`},
	{"20 a port is the pod's, after destination NAT", []string{`x/a {"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":8080}]}]}`}, `
		x/a > y/a tcp 8080: accept
		x/a > y/a tcp 80: deny`},
	{"22 the pod's node may enter", []string{`x/a {"podSelector":{},"policyTypes":["Ingress","Egress"]}`}, `
		n1 > x/a tcp 80: accept
		n1 > x/a icmpv6 128: accept
		x/a > n1 tcp 80: deny`},
	{"22 a masqueraded pod is itself, because its packet is judged before source NAT", []string{`x/a {"podSelector":{}}`}, `
		n1 > x/a tcp 80: accept
		x/b > x/a tcp 80: deny
		y/a > x/a tcp 80: deny`},
	{"23 another node is the world", []string{`x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`}, `n2 > x/a tcp 80: deny`},
	{"25 echo is isolated, neighbour discovery is not", []string{`x/a {"podSelector":{},"policyTypes":["Ingress","Egress"]}`}, `
		y/a > x/a icmpv6 128: deny
		y/a > x/a icmp 8: deny
		y/a > x/a icmpv6 135: accept
		x/a > y/a icmpv6 136: accept
		x/a > ff02::16 icmpv6 143: accept
		x/a > ff02::2 icmpv6 133: accept`},
	{"27 a pod in the node's network is not enforced", []string{`x/a {"podSelector":{},"policyTypes":["Ingress","Egress"]}`}, `
		192.0.2.1 > x/host tcp 80: accept
		x/host > 192.0.2.1 tcp 80: accept`},
}

func TestChecklist(t *testing.T) {
	for _, c := range checklist {
		t.Run(c.name, func(t *testing.T) { world(t, c.policies...).check(t, c.probes) })
	}
}

// A rule with many ipBlocks has one set, whose ranges do not touch each other.
func TestBlocksOfARuleAreOneSet(t *testing.T) {
	var blocks []string
	for i := range 256 {
		blocks = append(blocks, fmt.Sprintf(`{"ipBlock":{"cidr":"198.51.%d.0/24"}}`, i))
	}
	p := Compile(world(t, `x/a {"podSelector":{},"ingress":[{"from":[`+strings.Join(blocks, ",")+`,{"ipBlock":{"cidr":"203.0.113.0/24"}}]}]}`))
	if len(p.RangeSets) != 1 || len(p.RangeSets[0].Ranges) != 2 || len(p.Chains) != 1 || len(p.Chains[0].Rules) != 1 {
		t.Errorf("got %s", p)
	}
}
