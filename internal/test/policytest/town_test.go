// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// town is the cluster of the tables: namespaces a, b and c, nodes n1 and n2.
const town = `{"namespaces":[
  {"metadata":{"name":"a","labels":{"kubernetes.io/metadata.name":"a","team":"x"}}},
  {"metadata":{"name":"b","labels":{"kubernetes.io/metadata.name":"b","team":"y"}}},
  {"metadata":{"name":"c","labels":{"kubernetes.io/metadata.name":"c"}}}
],
"nodes":[
  {"metadata":{"name":"n1","labels":{"zone":"east"}},
    "spec":{"podCIDRs":["10.250.1.0/24","fd02:1::/64"]},
    "status":{"addresses":[{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"192.168.0.1"},{"type":"InternalIP","address":"fd01::1"}]}},
  {"metadata":{"name":"n2","labels":{"zone":"west"}},
    "spec":{"podCIDRs":["10.250.2.0/24","fd02:2::/64"]},
    "status":{"addresses":[{"type":"InternalIP","address":"192.168.0.2"},{"type":"InternalIP","address":"fd01::2"}]}}
],
"pods":[
  {"metadata":{"name":"web","namespace":"a","labels":{"app":"web"}},
    "spec":{"nodeName":"n1",
      "initContainers":[{"name":"setup","ports":[{"name":"setup","containerPort":82}]},{"name":"mesh","restartPolicy":"Always","ports":[{"name":"mesh","containerPort":83}]}],
      "containers":[{"name":"main","ports":[{"name":"http","containerPort":80},{"name":"dns","containerPort":53,"protocol":"UDP"}]}]},
    "status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}},
  {"metadata":{"name":"db","namespace":"a","labels":{"app":"db"}},
    "spec":{"nodeName":"n2","containers":[{"name":"main","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}]}]},
    "status":{"phase":"Running","podIPs":[{"ip":"10.0.0.2"},{"ip":"fd00::2"}]}},
  {"metadata":{"name":"web","namespace":"b","labels":{"app":"web","tier":"front"},"deletionTimestamp":"2026-01-01T00:00:00Z"},
    "spec":{"nodeName":"n2","containers":[{"name":"main","ports":[{"name":"http","containerPort":81}]}]},
    "status":{"phase":"Running","podIPs":[{"ip":"10.0.1.1"},{"ip":"fd00::1:1"}]}},
  {"metadata":{"name":"bare","namespace":"c"},
    "spec":{"nodeName":"n1","containers":[{"name":"main"}]},
    "status":{"phase":"Pending","podIPs":[{"ip":"10.0.2.1"},{"ip":"fd00::2:1"}]}},
  {"metadata":{"name":"job","namespace":"a","labels":{"app":"web"}},
    "spec":{"nodeName":"n1","containers":[{"name":"main"}]},
    "status":{"phase":"Succeeded","podIPs":[{"ip":"10.0.2.1"},{"ip":"fd00::9"}]}},
  {"metadata":{"name":"failed","namespace":"a","labels":{"app":"web"}},
    "spec":{"nodeName":"n1","containers":[{"name":"main"}]},
    "status":{"phase":"Failed","podIPs":[{"ip":"10.0.0.8"}]}},
  {"metadata":{"name":"host","namespace":"a","labels":{"app":"web"}},
    "spec":{"nodeName":"n1","hostNetwork":true,"containers":[{"name":"main","ports":[{"name":"http","containerPort":80}]}]},
    "status":{"phase":"Running","podIPs":[{"ip":"192.168.0.1"},{"ip":"fd01::1"}]}}
]}
`

// row tests a promise of the API, or a part of one. A policy is in namespace a unless it says
// otherwise. A policy of the cluster after "later PATH:" has a field of a later version there. A probe is "yes FROM TO PROTOCOL/PORT" or "no ...", where FROM and TO are a pod, a
// node, "world" or an address; after "yes6" and "no6" their IPv6 addresses count.
type row struct {
	line     int
	name     string
	policies []string
	probes   []string
}

func run(t *testing.T, rows []row) {
	for _, r := range rows {
		t.Run(fmt.Sprintf("%d %s", r.line, r.name), func(t *testing.T) {
			c := townWith(t, r.policies)
			for _, probe := range r.probes {
				checkProbe(t, c, probe)
			}
		})
	}
}

func checkProbe(t *testing.T, c Cluster, text string) {
	t.Helper()
	p, want := parseProbe(t, text)
	if got := c.Decide(p); got.Allowed != want {
		t.Errorf("%s: allowed is %v (%s): %+v", text, got.Allowed, p, got)
	}
}

func parseProbe(t *testing.T, text string) (p Probe, allowed bool) {
	t.Helper()
	f := strings.Fields(text)
	want, six := strings.CutSuffix(f[0], "6")
	protocol, port, _ := strings.Cut(f[3], "/")
	number, err := strconv.Atoi(port)
	if len(f) != 4 || (want != "yes" && want != "no") || (err != nil) != (protocol == "ICMP") {
		t.Fatalf("cannot read the probe %q", text)
	}
	return Probe{place(t, f[1], six), place(t, f[2], six), api.Protocol(protocol), int32(number)}, want == "yes"
}

func place(t *testing.T, name string, six bool) netip.Addr {
	t.Helper()
	both, ok := map[string][2]string{
		"a/web": {"10.0.0.1", "fd00::1"}, "a/db": {"10.0.0.2", "fd00::2"}, "b/web": {"10.0.1.1", "fd00::1:1"},
		"c/bare": {"10.0.2.1", "fd00::2:1"}, "n1": {"192.168.0.1", "fd01::1"}, "n2": {"192.168.0.2", "fd01::2"},
		"world": {"203.0.113.7", "2001:db8::7"},
	}[name]
	if !ok {
		return netip.MustParseAddr(name)
	}
	if six {
		return netip.MustParseAddr(both[1])
	}
	return netip.MustParseAddr(both[0])
}

func townWith(t *testing.T, policies []string) Cluster {
	t.Helper()
	var c Cluster
	decode(t, town, &c)
	for i, text := range policies {
		if strings.Contains(text, `"tier":`) && strings.Contains(text, `"subject":`) {
			c.ClusterPolicies = append(c.ClusterPolicies, clusterPolicy(t, i, text))
			continue
		}
		np := api.NetworkPolicy{}
		np.Namespace = "a"
		if rest, ok := strings.CutPrefix(text, "in b: "); ok {
			np.Namespace, text = "b", rest
		}
		np.Name = fmt.Sprintf("p%d", policiesIn(c, np.Namespace)) // a/p0 and b/p0 are two policies
		decode(t, text, &np.Spec)
		c.Policies = append(c.Policies, np)
	}
	return c
}

func policiesIn(c Cluster, namespace string) int {
	n := 0
	for _, np := range c.Policies {
		if np.Namespace == namespace {
			n++
		}
	}
	return n
}

func clusterPolicy(t *testing.T, i int, text string) api.ClusterNetworkPolicy {
	t.Helper()
	var cnp api.ClusterNetworkPolicy
	cnp.Name = fmt.Sprintf("p%d", i)
	if rest, ok := strings.CutPrefix(text, "later "); ok {
		path, spec, _ := strings.Cut(rest, ": ")
		cnp.Annotations, text = map[string]string{laterFields: path}, spec
	}
	decode(t, text, &cnp.Spec)
	return cnp
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := unmarshal([]byte(text), into); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
}
