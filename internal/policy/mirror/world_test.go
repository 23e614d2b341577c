// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

func TestMain(m *testing.M) {
	if state := os.Getenv(coldRead); state != "" {
		printColdRead(state)
		return
	}
	if state := os.Getenv(writeAll); state != "" {
		if _, err := Write(paths.Paths{State: state}, policy.NewDecider(large(5000, false))); err != nil {
			panic(err)
		}
		return
	}
	nettest.Main(m)
}

// stateOf reads a cluster as the first node's agent does. Each pod has the UID of its names.
func stateOf(t *testing.T, c policytest.Cluster) *policy.State {
	t.Helper()
	s := &policy.State{Node: c.Nodes[0].Name}
	s.Namespaces = parseAll(t, c.Namespaces, policy.ParseNamespace)
	s.Pods = parseAll(t, c.Pods, policy.ParsePod)
	s.Policies = parseAll(t, c.Policies, policy.ParseNetworkPolicy)
	s.ClusterPolicies = parseAll(t, c.ClusterPolicies, parseBroken)
	for i := range s.Pods {
		s.Pods[i].UID = s.Pods[i].Namespace + "-" + s.Pods[i].Name
	}
	return s
}

func parseAll[A, T any](t *testing.T, objects []A, parse func([]byte) (T, error)) (list []T) {
	t.Helper()
	for _, o := range objects {
		text, err := policytest.JSON(o)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, parsed)
	}
	return list
}

// shop is a node with one pod in each of two namespaces: policy web selects pod shop/web-0, and
// nothing selects pod free/any-0.
func shop() *policy.State {
	labels := func(key, value string) policy.Labels { return policy.Labels{{Key: key, Value: value}} }
	from := policy.Selector{MatchLabels: labels("app", "web")}
	return &policy.State{
		Node:       "n1",
		Namespaces: []policy.Namespace{{Name: "shop"}, {Name: "free"}},
		Pods: []policy.Pod{
			{Namespace: "shop", Name: "web-0", UID: "u-web", Node: "n1", Labels: labels("app", "web"), Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}},
			{Namespace: "free", Name: "any-0", UID: "u-any", Node: "n1", Labels: labels("app", "any")},
		},
		Policies: []policy.NetworkPolicy{{Namespace: "shop", Name: "web", Spec: policy.NetworkPolicySpec{
			PodSelector: from, Ingress: []policy.IngressRule{{From: []policy.Peer{{PodSelector: &from}}}},
		}}},
	}
}

// These are pods in their ADD. The first two are those of shop.
var (
	web      = Pod{"shop", "web-0", "u-web"}
	free     = Pod{"free", "any-0", "u-any"}
	another  = Pod{"shop", "new-0", "u-new"}
	stranger = Pod{"later", "x-0", "u-x"}
)

// node returns the paths of a node without a mirror. They are in memory, where fsync costs nothing.
func node(t testing.TB) paths.Paths {
	t.Helper()
	tmp, err := os.MkdirTemp("/run", "mirror")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	return paths.Paths{State: filepath.Join(tmp, "state")}
}

// mirrored returns the paths of a node with the mirror of a state.
func mirrored(t testing.TB, s *policy.State) paths.Paths {
	t.Helper()
	p := node(t)
	mustWrite(t, p, s)
	return p
}

func mustWrite(t testing.TB, p paths.Paths, s *policy.State) (changed int) {
	t.Helper()
	changed, err := Write(p, policy.NewDecider(s))
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// isClosed reports whether a decision isolates in both directions and has no chain.
func isClosed(d policy.Decision) bool { return reflect.DeepEqual(d, closed()) }

func isOpen(d policy.Decision) bool { return reflect.DeepEqual(d.Sides, [2]policy.Side{}) }

// files returns the content of each file of the mirror, with its mode.
func files(t *testing.T, p paths.Paths) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.Walk(dir(p), func(path string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rest, data := path[len(p.State):], []byte(nil)
		if fi.Mode().IsRegular() {
			data, err = os.ReadFile(path)
		}
		found[rest] = fmt.Sprintf("%v %s", fi.Mode(), data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// parseBroken reads a policy that may be broken, as the generator makes some.
func parseBroken(text []byte) (policy.ClusterNetworkPolicy, error) {
	p, err := policy.ParseClusterNetworkPolicy(text)
	if p.Broken != "" {
		err = nil
	}
	return p, err
}
