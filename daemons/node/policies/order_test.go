// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// event is one object as a watch sends it. JSON nil means that the object was deleted.
type event struct {
	kind Kind
	key  key
	json []byte
}

// send gives an event to a Cluster.
func (e event) send(t *testing.T, c *Cluster) {
	t.Helper()
	if e.json == nil {
		namespace := e.key.namespace
		if namespace == clusterWide {
			namespace = ""
		}
		c.Delete(e.kind, namespace, e.key.name)
	} else if err := c.Set(e.kind, e.json); err != nil {
		t.Fatal(err)
	}
}

// all returns a list without an error.
func all(objects ...[]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, o := range objects {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// listed returns a Cluster whose kinds have all been listed, and are empty.
func listed(t *testing.T, node string) *Cluster {
	t.Helper()
	c := New(node)
	for k := range kinds {
		replace(t, c, k)
	}
	return c
}

func replace(t *testing.T, c *Cluster, k Kind, objects ...[]byte) {
	t.Helper()
	if err := c.Replace(k, all(objects...)); err != nil {
		t.Fatal(err)
	}
}

// stateNow returns the state of a Cluster whose kinds have been listed.
func stateNow(t *testing.T, c *Cluster) *policy.State {
	t.Helper()
	var s policy.State
	if !c.state(&s) {
		t.Fatal("not all kinds have been listed")
	}
	return &s
}

// objectsOf returns the objects of a cluster as the API serves them.
func objectsOf(t *testing.T, c policytest.Cluster) (out [kinds]map[key][]byte) {
	for k := range out {
		out[k] = make(map[key][]byte)
	}
	for _, o := range c.Pods {
		o.UID = "uid-" + o.Namespace + "-" + o.Name
		out[Pods][key{o.Namespace, o.Name}] = marshal(t, o)
	}
	for _, o := range c.Namespaces {
		out[Namespaces][key{clusterWide, o.Name}] = marshal(t, o)
	}
	for _, o := range c.Nodes {
		out[Nodes][key{clusterWide, o.Name}] = marshal(t, o)
	}
	for _, o := range c.Policies {
		out[NetworkPolicies][key{o.Namespace, o.Name}] = marshal(t, o)
	}
	for _, o := range c.ClusterPolicies {
		out[ClusterNetworkPolicies][key{clusterWide, o.Name}] = marshal(t, o)
	}
	return out
}

func marshal(t *testing.T, o any) []byte {
	t.Helper()
	text, err := policytest.JSON(o)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// between returns the events of a change, in a random order.
func between(before, after [kinds]map[key][]byte, r *rand.Rand) (events []event) {
	for k := range kinds {
		for _, name := range sorted(after[k]) {
			if string(before[k][name]) != string(after[k][name]) {
				events = append(events, event{k, name, after[k][name]})
			}
		}
		for _, name := range sorted(before[k]) {
			if after[k][name] == nil {
				events = append(events, event{k, name, nil})
			}
		}
	}
	r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return events
}

func sorted(m map[key][]byte) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int { return strings.Compare(a.String(), b.String()) })
}

// built returns the state that policy's own functions make of a whole cluster.
func built(t *testing.T, objects [kinds]map[key][]byte, node string) *policy.State {
	return &policy.State{
		Node:            node,
		Pods:            parse(t, objects[Pods], policy.ParsePod),
		Namespaces:      parse(t, objects[Namespaces], policy.ParseNamespace),
		Nodes:           parse(t, objects[Nodes], policy.ParseNode),
		Policies:        parse(t, objects[NetworkPolicies], policy.ParseNetworkPolicy),
		ClusterPolicies: parse(t, objects[ClusterNetworkPolicies], parseBroken),
	}
}

func parse[T any](t *testing.T, objects map[key][]byte, read func([]byte) (T, error)) (list []T) {
	for _, text := range objects {
		o, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	return list
}

// decisions returns what the mirror would have for the pods of the node, by UID.
func decisions(s *policy.State) map[string]policy.Decision {
	d, out := policy.NewDecider(s), make(map[string]policy.Decision)
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Node == s.Node && p.Enforced() {
			out[p.UID] = d.Decide(p)
		}
	}
	return out
}

// compare compares a Cluster with the state of all objects at once.
func compare(t *testing.T, seed uint64, c *Cluster, objects [kinds]map[key][]byte) {
	t.Helper()
	got, want := stateNow(t, c), built(t, objects, c.node)
	if g, w := policy.Compile(got), policy.Compile(want); !reflect.DeepEqual(g, w) {
		t.Fatalf("seed %d: got the program\n%s\nwant\n%s", seed, g, w)
	}
	if g, w := decisions(got), decisions(want); !reflect.DeepEqual(g, w) {
		t.Fatalf("seed %d: got the decisions\n%v\nwant\n%v", seed, g, w)
	}
}

// TestEventsInAnyOrder gives the events of each change in another order to the agent of each node,
// some of them twice and some as a new list. Another agent gets each object's events at any later time.
func TestEventsInAnyOrder(t *testing.T) {
	for seed := range uint64(draw.Number(t, "PATCHBAY_EVENT_SEEDS", 30, 100)) {
		g := policytest.NewGenerator(seed, policytest.Small)
		r := rand.New(rand.NewPCG(seed, 1))
		prompt, late := []*Cluster{listed(t, "node1"), listed(t, "node2")}, listed(t, "node1")
		queues := make(map[key][]event)
		var before, after [kinds]map[key][]byte
		for range 8 {
			after = objectsOf(t, g.Cluster)
			events := between(before, after, r)
			for _, e := range events {
				id := key{e.kind.String(), e.key.String()}
				queues[id] = append(queues[id], e)
			}
			for _, c := range prompt {
				r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
				deliver(t, c, events, after, r)
				compare(t, seed, c, after)
			}
			drain(t, late, queues, r, len(queues)/2)
			before = after
			g.Change()
		}
		drain(t, late, queues, r, len(queues))
		compare(t, seed, late, after)
		vanish(t, seed, append(prompt, late), after)
	}
}

// deliver sends the events of one change.
func deliver(t *testing.T, c *Cluster, events []event, after [kinds]map[key][]byte, r *rand.Rand) {
	again := Kind(-1)
	if r.IntN(4) == 0 {
		again = Kind(r.IntN(int(kinds)))
		replace(t, c, again, slices.Collect(maps.Values(after[again]))...)
	}
	for _, e := range events {
		for range 1 + r.IntN(2) {
			if e.kind != again {
				e.send(t, c)
			}
		}
	}
}

// drain sends all events of some objects.
func drain(t *testing.T, c *Cluster, queues map[key][]event, r *rand.Rand, objects int) {
	ids := slices.SortedFunc(maps.Keys(queues), func(a, b key) int { return strings.Compare(a.String(), b.String()) })
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids[:objects] {
		for _, e := range queues[id] {
			e.send(t, c)
		}
		delete(queues, id)
	}
}

// vanish deletes all objects. Then nothing is left, and nothing is shared.
func vanish(t *testing.T, seed uint64, clusters []*Cluster, objects [kinds]map[key][]byte) {
	t.Helper()
	for i, c := range clusters {
		for k := range kinds {
			for name := range objects[k] {
				if i > 0 {
					event{k, name, nil}.send(t, c)
				}
			}
			replace(t, c, k)
		}
		s := stateNow(t, c)
		if n := len(s.Pods) + len(s.Namespaces) + len(s.Nodes) + len(s.Policies) + len(s.ClusterPolicies); n > 0 {
			t.Fatalf("seed %d: %d objects are left", seed, n)
		}
		if n := len(c.shared.workloads) + len(c.shared.texts); n > 0 {
			t.Fatalf("seed %d: %d values are still shared: %v", seed, n, c.shared.texts)
		}
	}
}

// parseBroken reads a policy that may be broken, as the generator makes some.
func parseBroken(text []byte) (policy.ClusterNetworkPolicy, error) {
	p, err := policy.ParseClusterNetworkPolicy(text)
	if p.Broken != "" {
		err = nil
	}
	return p, err
}
