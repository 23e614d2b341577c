// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// apiPod returns a pod with a UID as the API serves it. Words after the addresses: "leaving".
func apiPod(node, name, uid, addresses string) string {
	list, leaving := strings.CutSuffix(addresses, " leaving")
	var ips []string
	for _, a := range strings.Fields(list) {
		ips = append(ips, fmt.Sprintf(`{"ip":%q}`, a))
	}
	gone := ""
	if leaving {
		gone = `,"deletionTimestamp":"2026-11-23T08:00:00Z"`
	}
	return fmt.Sprintf(`{"metadata":{"namespace":"x","name":%q,"uid":%q,"labels":{"app":%q}%s},"spec":{"nodeName":%q},"status":{"phase":"Running","podIPs":[%s]}}`,
		name, uid, name, gone, node, strings.Join(ips, ","))
}

func attached(name, uid, addresses string, labels ...policy.Label) Attached {
	a := Attached{Namespace: "x", Name: name, UID: uid, Labels: labels}
	for _, text := range strings.Fields(addresses) {
		a.Addresses = append(a.Addresses, netip.MustParseAddr(text))
	}
	return a
}

// described returns the pods of a state, sorted: "a{app=a} 10.1.1.1", with a question mark for labels
// that are not known.
func described(t *testing.T, c *Cluster) (out []string) {
	t.Helper()
	for _, p := range stateNow(t, c).Pods {
		text := p.Name + "{" + p.Labels.String() + "}"
		if p.Unknown {
			text = p.Name + "{?}"
		}
		slices.SortFunc(p.Addresses, netip.Addr.Compare)
		for _, a := range p.Addresses {
			text += " " + a.String()
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// TestAttach gives attachments to the pods of node n1. After it, the API's pods alone are as before.
func TestAttach(t *testing.T) {
	const hash = "5f2a7d0c9e8b4a6f8d3c1b0a99887766" // the UID of a static pod at the runtime
	for name, c := range map[string]struct {
		pods     []string
		attached []Attached
		want     []string
	}{
		"the API does not show the address yet": {
			[]string{apiPod("n1", "a", "u-a", "")}, []Attached{attached("a", "u-a", "10.1.1.1 fd00::1")}, []string{"a{app=a} 10.1.1.1 fd00::1"},
		},
		"it shows it": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1")}, []Attached{attached("a", "u-a", "10.1.1.1")}, []string{"a{app=a} 10.1.1.1"},
		},
		"further interfaces": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1")}, []Attached{attached("a", "u-a", "10.9.0.1"), attached("a", "u-a", "10.1.1.1")}, []string{"a{app=a} 10.1.1.1 10.9.0.1"},
		},
		"the API does not have the pod": {
			nil, []Attached{attached("a", "u-a", "10.1.1.1"), attached("a", "u-a", "10.9.0.1")}, []string{"a{?} 10.1.1.1 10.9.0.1"},
		},
		"another pod of its name": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1 leaving")}, []Attached{attached("a", "u-b", "10.1.1.2")}, []string{"a 10.1.1.2{?} 10.1.1.2", "a{app=a} 10.1.1.1"},
		},
		"a pod of its name on another node": {
			[]string{apiPod("n2", "a", "u-a", "10.1.2.1")}, []Attached{attached("a", "u-b", "10.1.1.2")}, []string{"a{?} 10.1.1.2", "a{app=a} 10.1.2.1"},
		},
		"a static pod": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1")}, []Attached{attached("a", hash, "10.1.1.1 fd00::1")}, []string{"a{app=a} 10.1.1.1 fd00::1"},
		},
		"a static pod without an address in the API": {
			[]string{apiPod("n1", "a", "u-a", "")}, []Attached{attached("a", hash, "10.1.1.1")}, []string{"a 10.1.1.1{?} 10.1.1.1", "a{app=a}"},
		},
		"a runtime without UIDs": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1")}, []Attached{attached("a", "", "10.1.1.1")}, []string{"a{app=a} 10.1.1.1"},
		},
		"a new pod of a StatefulSet with the address of the old one": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1")}, []Attached{attached("a", "u-b", "10.1.1.1")}, []string{"a 10.1.1.1{?} 10.1.1.1", "a{app=a}"},
		},
		"labels of the configuration": {
			nil, []Attached{attached("c", "", "10.1.1.1", policy.Label{Key: "app", Value: "db"}), attached("", "", "10.1.1.2", policy.Label{Key: "app", Value: "db"})},
			[]string{"10.1.1.2{app=db} 10.1.1.2", "c{app=db} 10.1.1.1"},
		},
		"one name with two lists of labels": {
			nil, []Attached{attached("c", "", "10.1.1.1", policy.Label{Key: "app", Value: "db"}), attached("c", "", "10.1.1.2", policy.Label{Key: "app", Value: "web"})},
			[]string{"c 10.1.1.2{app=web} 10.1.1.2", "c{app=db} 10.1.1.1"},
		},
		"an address that the API shows for former pods": {
			[]string{apiPod("n1", "a", "u-a", "10.1.1.1 fd00::1"), apiPod("n2", "b", "u-b", "10.1.1.1"), apiPod("n1", "c", "u-c", "")},
			[]Attached{attached("c", "u-c", "10.1.1.1")}, []string{"a{app=a} fd00::1", "b{app=b}", "c{app=c} 10.1.1.1"},
		},
		"two attachments with one address": {
			[]string{apiPod("n1", "a", "u-a", ""), apiPod("n1", "b", "u-b", "")},
			[]Attached{attached("a", "u-a", "10.1.1.1"), attached("b", "u-b", "10.1.1.1")}, []string{"a{app=a} 10.1.1.1", "b{app=b} 10.1.1.1"},
		},
		"without names or addresses": {nil, []Attached{{Namespace: "x", Name: "a"}, {Name: "b", Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.1")}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := listed(t, "n1")
			set(t, cluster, Pods, c.pods...)
			before := described(t, cluster)
			cluster.Attach(c.attached)
			for range 2 { // the first state changes nothing of the second one
				if got := described(t, cluster); !slices.Equal(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
			if cluster.Attach(nil); !slices.Equal(described(t, cluster), before) {
				t.Errorf("the API's pods are now %q, were %q", described(t, cluster), before)
			}
		})
	}
}

// TestOwnNamespace checks which packets reach pods if the default is their own namespace.
func TestOwnNamespace(t *testing.T) {
	c := listed(t, "n1")
	c.DefaultOwnNamespace()
	for i, ns := range []string{"kube-system", "x", "y", "z"} {
		set(t, c, Namespaces, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kubernetes.io/metadata.name":%[1]q}}}`, ns))
		for j := range 2 {
			set(t, c, Pods, fmt.Sprintf(`{"metadata":{"namespace":%q,"name":"p%d"},"spec":{"nodeName":"n1"},"status":{"podIP":"10.1.%d.%[2]d"}}`, ns, j, i))
		}
	}
	set(t, c, NetworkPolicies, `{"metadata":{"namespace":"z","name":"open"},"spec":{"podSelector":{},"ingress":[{}]}}`)
	const system, x, other, y, z, world = "10.1.0.0", "10.1.1.0", "10.1.1.1", "10.1.2.0", "10.1.3.0", "192.0.2.9"
	program := policy.Compile(stateNow(t, c))
	for _, test := range []struct {
		from, to string
		want     policy.Verdict
	}{
		{x, other, policy.Accept}, {y, x, policy.Deny}, {system, x, policy.Deny}, {world, x, policy.Accept},
		{x, system, policy.Accept}, {x, z, policy.Accept}, {x, world, policy.Accept},
	} {
		got, by := program.Allows(netip.MustParseAddr(test.from), netip.MustParseAddr(test.to), l4.TCP, 80)
		if got != test.want {
			t.Errorf("%s to %s: %s by %v, want %s", test.from, test.to, got, by, test.want)
		}
	}
	if len(program.Problems) > 0 {
		t.Error(program.Problems)
	}
	before := fmt.Sprint(policy.Compile(stateNow(t, c)))
	if after := fmt.Sprint(policy.Compile(stateNow(t, c))); after != before {
		t.Errorf("the second state differs:\n%s\n%s", before, after)
	}
}
