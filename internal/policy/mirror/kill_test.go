// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"maps"
	"os/exec"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

type kill struct{}

// killed writes a state and ends before one of its changes. It reports whether there was one.
func killed(t *testing.T, p paths.Paths, s *policy.State, at int) (was bool) {
	t.Helper()
	defer func() {
		switch e := recover().(type) {
		case nil:
		case kill:
			was = true
		default:
			panic(e)
		}
	}()
	n := 0
	if _, err := write(p, policy.NewDecider(s), func() {
		if n++; n > at {
			panic(kill{})
		}
	}); err != nil {
		t.Fatal(err)
	}
	return false
}

// The agent may be killed between any two files. Then each pod meets the old decision or the new
// one, or that of a pod whose labels are not known, or it is isolated. The next Write completes the mirror.
func TestKilledBetweenFiles(t *testing.T) {
	kills, closings := 0, 0
	seeds := draw.Number(t, "PATCHBAY_MIRROR_SEEDS", 12, 40)
	for seed := range uint64(seeds) {
		g := policytest.NewGenerator(seed, policytest.Small)
		before := stateOf(t, g.Clone())
		for range 1 + seed%5 {
			g.Change()
		}
		after := stateOf(t, g.Clone())
		if seed%4 == 0 {
			before = nil
		}
		closings += killEverywhere(t, before, after, &kills)
	}
	t.Logf("killed %d times; %d pods were isolated until the next Write", kills, closings)
	if kills < 5*seeds {
		t.Errorf("want %d kills", 5*seeds)
	}
}

func killEverywhere(t *testing.T, before, after *policy.State, kills *int) (closings int) {
	was, is := node(t), mirrored(t, after)
	if before != nil {
		mustWrite(t, was, before)
	}
	pods := append(podsOf(before), podsOf(after)...)
	for at := 0; ; at++ {
		p := node(t)
		if before != nil {
			mustWrite(t, p, before)
		}
		if !killed(t, p, after, at) {
			return closings
		}
		*kills++
		for _, pod := range pods {
			got, _ := Read(p, pod)
			old, _ := Read(was, pod)
			made, _ := Read(is, pod)
			unknown, _ := Read(is, Pod{pod.Namespace, "new", ""})
			switch {
			case reflect.DeepEqual(got, old), reflect.DeepEqual(got, made), reflect.DeepEqual(got, unknown):
			case isClosed(got):
				closings++
			default:
				t.Fatalf("killed before change %d, pod %+v: got %+v, want %+v or %+v", at, pod, got, old, made)
			}
		}
		mustWrite(t, p, after)
		for _, pod := range pods {
			got, _ := Read(p, pod)
			if made, _ := Read(is, pod); !reflect.DeepEqual(got, made) {
				t.Fatalf("after the next Write, pod %+v: got %+v, want %+v", pod, got, made)
			}
		}
	}
}

// podsOf returns the pods of a state, and in each namespace one that it does not have.
func podsOf(s *policy.State) []Pod {
	list := []Pod{stranger}
	if s == nil {
		return list
	}
	for _, p := range s.Pods {
		list = append(list, Pod{p.Namespace, p.Name, p.UID})
	}
	for _, n := range s.Namespaces {
		list = append(list, Pod{n.Name, "new", ""})
	}
	return list
}

// writeAll is the variable with the state directory for a process that writes a large mirror.
const writeAll = "PATCHBAY_WRITE_MIRROR"

// A process is killed with kill -9 while it writes a mirror over another one.
func TestKill9(t *testing.T) {
	was, is := large(0, false), large(5000, false)
	old, made := mirrored(t, was), mirrored(t, is)
	kills, p := nettest.NewKills(t, "Write"), node(t)
	for kills.More(draw.Number(t, "PATCHBAY_MIRROR_KILLS", 8, 40)) {
		mustWrite(t, p, was)
		kills.Try(func(after time.Duration) (died bool) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe")
			cmd.Env = []string{writeAll + "=" + p.State}
			out, err := cmd.CombinedOutput()
			if err != nil && ctx.Err() == nil {
				t.Fatalf("%v: %s", err, out)
			}
			return err != nil
		})
		for _, pod := range podsOf(is) {
			got, _ := Read(p, pod)
			before, _ := Read(old, pod)
			after, _ := Read(made, pod)
			if !reflect.DeepEqual(got, before) && !reflect.DeepEqual(got, after) {
				t.Fatalf("pod %+v: got %+v, want %+v or %+v", pod, got, before, after)
			}
		}
	}
}

// Two policies change places: at each moment one of them selects the pod. If policies and labels were in
// separate files, there would be a moment at which neither policy selects the pod.
func TestNeverBetweenTwoPolicies(t *testing.T) {
	team := func(name string) *policy.State {
		s := shop()
		labels := policy.Labels{{Key: "team", Value: name}}
		for i := range s.Namespaces {
			s.Namespaces[i].Labels = labels
		}
		s.ClusterPolicies = []policy.ClusterNetworkPolicy{{Name: "deny-" + name, Spec: policy.ClusterNetworkPolicySpec{
			Tier: "Admin", Subject: policy.PodPeer{Namespaces: &policy.Selector{MatchLabels: labels}},
			Ingress: []policy.ClusterIngressRule{{Action: "Deny", From: []policy.PodPeer{{Namespaces: &policy.Selector{}}}}},
		}}}
		return s
	}
	for at := 0; ; at++ {
		p := mirrored(t, team("a"))
		more := killed(t, p, team("b"), at)
		for _, pod := range []Pod{web, free, another, stranger} {
			if d, _ := Read(p, pod); len(d.Sides[policy.Ingress].Chains) == 0 && !d.Sides[policy.Ingress].Isolated {
				t.Errorf("killed before change %d: pod %+v is not isolated: %+v", at, pod, d)
			}
		}
		if !more {
			return
		}
	}
}

// A cluster without policies isolates nothing, also while its first mirror is half written.
func TestKilledWithoutPolicies(t *testing.T) {
	s := shop()
	s.Policies = nil
	for at := 0; ; at++ {
		p := node(t)
		more := killed(t, p, s, at)
		for _, pod := range podsOf(s) {
			if d, err := Read(p, pod); err != nil || !isOpen(d) {
				t.Errorf("killed before change %d, pod %+v: got %+v, %v", at, pod, d, err)
			}
		}
		if !more {
			return
		}
	}
}

// The first policy of a cluster comes with a new namespace. As soon as any part of the change is on the
// disk, the pods of the namespace are isolated.
func TestKilledAtTheFirstPolicy(t *testing.T) {
	before, after := shop(), shop()
	before.Policies, before.Namespaces = nil, before.Namespaces[1:]
	want := files(t, mirrored(t, before))
	for at := 0; ; at++ {
		p := mirrored(t, before)
		more := killed(t, p, after, at)
		d, _ := Read(p, another)
		if !d.Sides[policy.Ingress].Isolated && !maps.Equal(files(t, p), want) {
			t.Errorf("killed before change %d: got %+v with the files %v", at, d, files(t, p))
		}
		if !more {
			return
		}
	}
}

// ADDs read while the agent writes.
func TestReadWhileWriting(t *testing.T) {
	states := [2]*policy.State{shop(), shop()}
	states[1].Policies = append(states[1].Policies, policy.NetworkPolicy{Namespace: "free", Name: "all", Spec: policy.NetworkPolicySpec{PolicyTypes: []string{"Ingress"}}})
	p := mirrored(t, states[0])
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, pod := range []Pod{web, another} {
					if d, err := Read(p, pod); err != nil || !d.Sides[policy.Ingress].Isolated {
						t.Errorf("pod %+v: got %+v, %v", pod, d, err)
					}
				}
				if _, err := Read(p, free); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 300 {
		mustWrite(t, p, states[i%2])
	}
	close(done)
	readers.Wait()
}
