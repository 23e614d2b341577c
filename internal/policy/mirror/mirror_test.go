// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// An ADD reads what the program of the whole cluster has for the pod. Each Write changes the
// previous mirror, and the result equals a mirror that is written anew.
func TestRoundTrip(t *testing.T) {
	known, isolated, changes := 0, 0, 0
	seeds := draw.Number(t, "PATCHBAY_MIRROR_SEEDS", 20, 60)
	for seed := range uint64(seeds) {
		g, p := policytest.NewGenerator(seed, policytest.Small), node(t)
		for range 6 {
			s := stateOf(t, g.Clone())
			changes += mustWrite(t, p, s)
			if n := mustWrite(t, p, s); n != 0 {
				t.Fatalf("seed %d: the second Write changed %d files", seed, n)
			}
			if got, want := files(t, p), files(t, mirrored(t, s)); !maps.Equal(got, want) {
				t.Fatalf("seed %d: got the files\n%v\nwant\n%v", seed, got, want)
			}
			n, closed := compare(t, p, s)
			known, isolated = known+n, isolated+closed
			g.Change()
		}
	}
	t.Logf("compared %d pods, %d of them isolated; %d files changed", known, isolated, changes)
	if known < 8*seeds || isolated < 5*seeds/2 {
		t.Errorf("want %d pods, %d of them isolated", 8*seeds, 5*seeds/2)
	}
}

// compare compares what an ADD reads with the program: for each pod of this node, and in each
// namespace for a pod whose labels are not known.
func compare(t *testing.T, p paths.Paths, s *policy.State) (known, isolated int) {
	t.Helper()
	program := policy.Compile(s)
	for _, l := range program.Pods {
		namespace, name, _ := strings.Cut(l.Name, "/")
		got, err := Read(p, Pod{namespace, name, namespace + "-" + name})
		pod := podOf(s, l.Name)
		want := policy.Decision{Sides: l.Sides, Identity: identity(program, l.Addresses[0]), Against: policy.NewDecider(s).Decide(pod).Against}
		for _, set := range program.Sets {
			if slices.Contains(set.Members, want.Identity) {
				want.Sets = append(want.Sets, set.Name)
			}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("pod %s: got %+v, %v, want %+v\n%s", l.Name, got, err, want, program)
		}
		known++
		if l.Sides[0].Isolated {
			isolated++
		}
	}
	for _, n := range s.Namespaces {
		compareUnknown(t, p, s, n.Name)
	}
	return known, isolated
}

// compareUnknown compares the mirror's decision for a pod that it does not have with the program of
// a cluster that has the pod, but not its labels.
func compareUnknown(t *testing.T, p paths.Paths, s *policy.State, namespace string) {
	t.Helper()
	with, addr := *s, netip.MustParseAddr("10.200.0.1")
	with.Pods = append(slices.Clone(s.Pods), policy.Pod{Namespace: namespace, Name: "new", Node: s.Node, Unknown: true, Addresses: []netip.Addr{addr}})
	decider := policy.NewDecider(&with)
	decided := decider.Decide(&with.Pods[len(with.Pods)-1])
	want := decided.Sides
	for _, l := range decider.Program.Pods {
		for side := range l.Sides {
			isolated := policy.Side{Isolated: true, Unknown: true} // where a rule of another pod may deny it
			if l.Name == namespace+"/new" && !reflect.DeepEqual(l.Sides[side], map[bool]policy.Side{false: want[side], true: isolated}[decided.Against[side]]) {
				t.Fatalf("namespace %s: the program has %+v, the decision is %+v", namespace, l.Sides, decided)
			}
		}
	}
	against := policy.NewDecider(s).Decide(&policy.Pod{Namespace: namespace, Unknown: true}).Against
	for _, uid := range []string{"", "new", "../" + s.Node} {
		got, err := Read(p, Pod{namespace, "new", uid})
		if err != nil || !reflect.DeepEqual(got, policy.Decision{Sides: want, Against: against}) {
			t.Fatalf("namespace %s: got %+v, %v, want %+v", namespace, got, err, want)
		}
	}
}

func podOf(s *policy.State, name string) *policy.Pod {
	i := slices.IndexFunc(s.Pods, func(p policy.Pod) bool { return p.Namespace+"/"+p.Name == name })
	return &s.Pods[i]
}

func identity(p *policy.Program, a netip.Addr) policy.Number {
	for _, known := range p.Addresses {
		if known.Addr == a {
			return known.Identity
		}
	}
	return 0
}

func TestWithoutMirror(t *testing.T) {
	if d, err := Read(node(t), web); err != nil || !isOpen(d) {
		t.Errorf("got %+v, %v, want no isolation: policies were never enabled", d, err)
	}
}

func TestRemove(t *testing.T) {
	p := mirrored(t, shop())
	for range 2 { // the second time there is nothing to remove
		if err := Remove(p); err != nil {
			t.Fatal(err)
		}
		if d, err := Read(p, web); err != nil || !isOpen(d) {
			t.Errorf("got %+v, %v", d, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(dir(p))); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestPodsOfOneName(t *testing.T) {
	p := mirrored(t, shop())
	d, err := Read(p, Pod{"shop", "web-0", "u-later"}) // a StatefulSet made it again, perhaps with other labels
	if err != nil || !d.Sides[0].Unknown {
		t.Errorf("got %+v, %v, want a decision without the labels of the earlier pod", d, err)
	}
}

// A namespace that the mirror does not have may have policies; but a cluster without any policy
// isolates nothing.
func TestNamespaceThatIsNotKnown(t *testing.T) {
	s := shop()
	p := mirrored(t, s)
	if d, err := Read(p, stranger); err == nil || !isClosed(d) || !strings.Contains(err.Error(), "does not have its namespace") {
		t.Errorf("got %+v, %v, want isolation with the reason", d, err)
	}
	s.Policies = nil
	mustWrite(t, p, s)
	if d, err := Read(p, stranger); err != nil || !isOpen(d) {
		t.Errorf("got %+v, %v, want no isolation", d, err)
	}
}

// A pod can be known before its namespace is. Then policies of the namespace may not be known.
func TestPodOfNamespaceThatIsNotKnown(t *testing.T) {
	s := shop()
	s.Namespaces = s.Namespaces[:1]
	if d, err := Read(mirrored(t, s), free); err == nil || !isClosed(d) {
		t.Errorf("got %+v, %v, want isolation", d, err)
	}
}

func TestPodsWithoutAFile(t *testing.T) {
	s := shop()
	for i := range 5 {
		s.Pods = append(s.Pods, s.Pods[0])
		s.Pods[2+i].Name = "p"
	}
	s.Pods[2].UID, s.Pods[2].HostNetwork = "host", true
	s.Pods[3].UID, s.Pods[3].Phase = "finished", "Succeeded"
	s.Pods[4].UID, s.Pods[4].Node = "elsewhere", "n2"
	s.Pods[5].UID = "../head"
	s.Pods[6].UID, s.Pods[6].Unknown = "unknown", true
	entries, err := os.ReadDir(filepath.Join(dir(mirrored(t, s)), podsDir))
	if err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v, want the two pods of shop", entries, err)
	}
}

func TestInvalidNames(t *testing.T) {
	p := mirrored(t, shop())
	for _, name := range []string{"", "../pods", ".", "a/b", "a\x00", strings.Repeat("a", 129)} {
		if d, err := Read(p, Pod{Namespace: name, Name: "x"}); err == nil || !isClosed(d) {
			t.Errorf("namespace %q: got %+v, %v, want isolation", name, d, err)
		}
	}
	s := shop()
	s.Namespaces[1].Name = "../free"
	before := files(t, p)
	if _, err := Write(p, policy.NewDecider(s)); err == nil || !strings.Contains(err.Error(), "is not a valid name") {
		t.Errorf("got %v", err)
	}
	if len(files(t, p)) >= len(before) {
		t.Errorf("got the files %v", files(t, p))
	}
}
