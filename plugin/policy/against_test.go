// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/spec"
)

// A rule that denies a new pod as the other end has no effect until a program has the pod's address. Until then the pod
// is closed; after that, CHECK does not require it.
func TestADDOfADeniedPeer(t *testing.T) {
	n := fresh(t)
	wall, err := rules.ParseClusterNetworkPolicy([]byte(`{"metadata":{"name":"wall"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{"matchLabels":{"kubernetes.io/metadata.name":"bank"}}},
		"ingress":[{"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}}]}]}}`))
	must(t, err)
	s := stateWith(t)
	for i := range s.Namespaces {
		s.Namespaces[i].Labels = rules.LabelsOf(map[string]string{"kubernetes.io/metadata.name": s.Namespaces[i].Name})
	}
	s.ClusterPolicies = []rules.ClusterNetworkPolicy{wall}
	s.Pods = []rules.Pod{{Namespace: "bank", Name: "b", Node: "n1", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("10.90.0.9")}}}
	_, err = mirror.Write(paths.Default(), rules.NewDecider(s))
	must(t, err)
	t.Cleanup(func() { must(t, mirror.Remove(paths.Default())) })
	a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	a.must(t, spec.Add)
	closedAt(t, "10.90.0.5", false, true)
	s.Pods = append(s.Pods, rules.Pod{Namespace: "shop", Name: "web-1", UID: "42", Node: "n1", Phase: "Running", Labels: rules.LabelsOf(map[string]string{"app": "web"}),
		Addresses: []netip.Addr{netip.MustParseAddr("10.90.0.5")}})
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // a test
	e := enforce.New(fw, enforce.Options{KeepConnections: true})
	must(t, e.Load(t.Context(), rules.Compile(s), map[netip.Addr]owner.Key{netip.MustParseAddr("10.90.0.5"): recordOf(t, "c1").Owner}))
	closedAt(t, "10.90.0.5", false, false)
	a.must(t, spec.Check)
	a.del(t)
	must(t, e.Clear(t.Context()))
}
