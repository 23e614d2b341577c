// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// pod returns a pod of node n1 in namespace x.
func pod(name, phase, address string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"x","name":%q,"labels":{"app":%[1]q}},"spec":{"nodeName":"n1"},"status":{"phase":%q,"podIPs":[{"ip":%q}]}}`, name, phase, address)
}

func set(t *testing.T, c *Cluster, k Kind, objects ...string) {
	t.Helper()
	for _, o := range objects {
		if err := c.Set(k, []byte(o)); err != nil {
			t.Fatal(err)
		}
	}
}

// holders returns the pods that have an address, as "a,b".
func holders(t *testing.T, c *Cluster, address string) string {
	t.Helper()
	var names []string
	for _, p := range stateNow(t, c).Pods {
		for _, a := range p.Addresses {
			if a.String() == address {
				names = append(names, p.Name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// An address belongs to a pod no more as soon as the pod has finished or is deleted. An event of a pod
// that has finished does not take the address from the pod that has it now.
func TestAddressesLeaveAtOnce(t *testing.T) {
	c := listed(t, "n1")
	put := func(name, phase, address string) func() {
		return func() { set(t, c, Pods, pod(name, phase, address)) }
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{put("a", "Running", "10.1.1.1"), "a"},
		{put("a", "Succeeded", "10.1.1.1"), ""},
		{put("b", "Pending", "10.1.1.1"), "b"},
		{put("a", "Succeeded", "10.1.1.1"), "b"},
		{func() { c.Delete(Pods, "x", "a") }, "b"},
		{put("b", "Failed", "10.1.1.1"), ""},
		{put("c", "Running", "10.1.1.1"), "c"},
		{func() { c.Delete(Pods, "x", "c") }, ""},
		{put("d", "Running", "10.1.1.1"), "d"},
		{put("d", "Running", "10.1.1.2"), ""}, // in a new sandbox
		{put("e", "Running", "10.1.1.1"), "e"},
		{func() {
			replace(t, c, Pods, []byte(pod("e", "Failed", "10.1.1.1")), []byte(pod("f", "Running", "10.1.1.1")))
		}, "f"},
		{func() { replace(t, c, Pods) }, ""},
	} {
		step.do()
		if got := holders(t, c, "10.1.1.1"); got != step.want {
			t.Errorf("step %d: the address belongs to %q, want %q", i, got, step.want)
		}
	}
}

// A pod of another node counts if it has an address. A pod of this node counts before, and has a UID.
func TestWhatIsKeptOfAPod(t *testing.T) {
	c := listed(t, "n1")
	for _, node := range []string{"n1", "n2"} {
		for name, rest := range map[string]string{
			"plain": `"},"status":{"phase":"Running","podIP":"10.1.1.1"}`,
			"new":   `"},"status":{"phase":"Pending"}`,
			"host":  `","hostNetwork":true},"status":{"phase":"Running","podIP":"10.0.0.1"}`,
			"over":  `"},"status":{"phase":"Succeeded","podIP":"10.1.1.2"}`,
		} {
			set(t, c, Pods, fmt.Sprintf(`{"metadata":{"namespace":"x","name":"%s-%s","uid":"u"},"spec":{"nodeName":"%[2]s%s}`, name, node, rest))
		}
	}
	got := make(map[string]string)
	for _, p := range stateNow(t, c).Pods {
		got[p.Name] = p.UID
	}
	if len(got) != 3 || got["plain-n1"] != "u" || got["new-n1"] != "u" || got["plain-n2"] != "" {
		t.Errorf("kept %v, want plain-n1 and new-n1 with a UID, and plain-n2 without", got)
	}
}

// good is a cluster in which no policy isolates the pod x/a.
var good = map[Kind]string{
	Namespaces:             `{"metadata":{"name":"x","labels":{"team":"a"}}}`,
	Nodes:                  `{"metadata":{"name":"n1"},"status":{"addresses":[{"address":"10.0.0.1"}]}}`,
	Pods:                   pod("a", "Running", "10.1.1.1"),
	NetworkPolicies:        `{"metadata":{"namespace":"x","name":"p"},"spec":{"podSelector":{"matchLabels":{"app":"b"}}}}`,
	ClusterNetworkPolicies: `{"metadata":{"name":"t"},"spec":{"tier":"Admin","subject":{"namespaces":{"matchLabels":{"team":"b"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`,
}

// Each of these objects has a name, and a part that cannot be read. Until the object can be read or is
// deleted, one problem names it, and the pods that it may concern are closed.
func TestBrokenObjects(t *testing.T) {
	for kind, broken := range map[Kind]struct{ object, json string }{
		Pods:                   {"pod x/a", `{"metadata":{"labels":{"app":1},"namespace":"x","name":"a"},"spec":{"nodeName":"n1"},"status":{"podIP":"10.1.1.1"}}`},
		Namespaces:             {"namespace x", `{"metadata":{"labels":{"team":1},"name":"x"}}`},
		NetworkPolicies:        {"networkpolicy x/p", `{"metadata":{"namespace":"x","name":"p"},"spec":7}`},
		ClusterNetworkPolicies: {"clusternetworkpolicy t", `{"metadata":{"name":"t"},"spec":{"tier":"Admin","subject":"all"}}`},
	} {
		c := listed(t, "n1")
		for k, o := range good {
			set(t, c, k, o)
		}
		if open, problems := pass(t, c); !open || len(problems) > 0 {
			t.Fatalf("%s: good objects have the problems %v", kind, problems)
		}
		set(t, c, kind, broken.json, broken.json)
		open, problems := pass(t, c)
		if open || !slices.Contains(problems, broken.object) {
			t.Errorf("%s: open %v, with the problems %v", kind, open, problems)
		}
		set(t, c, kind, good[kind])
		if open, problems := pass(t, c); !open || len(problems) > 0 {
			t.Errorf("%s can be read again: open %v, with the problems %v", kind, open, problems)
		}
		set(t, c, kind, broken.json)
		if replace(t, c, kind); len(c.Problems()) > 0 {
			t.Errorf("%s was deleted and has the problems %v", kind, c.Problems())
		}
	}
}

// pass reports whether x/a may receive from 10.1.1.9, and lists the objects with problems.
func pass(t *testing.T, c *Cluster) (open bool, objects []string) {
	t.Helper()
	p := policy.Compile(stateNow(t, c))
	seen := make(map[string]int)
	for _, problem := range c.Problems() {
		objects = append(objects, problem.Object)
		seen[problem.Object]++
	}
	for _, problem := range p.Problems {
		objects = append(objects, problem.Object)
		if seen[problem.Object] > 0 && !strings.Contains(problem.Text, "isolated") {
			t.Errorf("%s is reported twice", problem.Object)
		}
	}
	src, dst := stateNow(t, c).Pods[0].Addresses[0].Next(), stateNow(t, c).Pods[0].Addresses[0]
	verdict, _ := p.Allows(src, dst, l4.TCP, 80)
	return verdict == policy.Accept, objects
}

// An address that cannot be read does not hide the pod, and a node keeps what can be read.
func TestPartsThatCannotBeRead(t *testing.T) {
	c := listed(t, "n1")
	set(t, c, Pods, pod("a", "Running", "10.1.1.1.1"))
	set(t, c, Nodes, `{"metadata":{"labels":1,"name":"n1"},"status":{"addresses":[{"address":"10.0.0.1"}]}}`)
	s, problems := stateNow(t, c), c.Problems()
	if len(s.Pods) != 1 || s.Pods[0].Unknown || len(s.Nodes) != 1 || len(s.Nodes[0].Addresses) != 1 || len(problems) != 2 || problems[0].Object != "node n1" {
		t.Errorf("got %+v with the problems %v", s, problems)
	}
}

// If an object could be any object, nothing changes.
func TestObjectsWithoutAName(t *testing.T) {
	c := listed(t, "n1")
	for k, o := range good {
		set(t, c, k, o)
		for _, text := range []string{`{"metadata":{"namespace":"x"}}`, `{"metadata":{"name":7}}`, o[:len(o)/2], ``, `null`} {
			if err := c.Set(k, []byte(text)); err == nil || !strings.Contains(err.Error(), "list the objects again") {
				t.Errorf("%s %s: got the error %v", k, text, err)
			}
			if err := c.Replace(k, all([]byte(o), []byte(text))); err == nil {
				t.Errorf("%s %s: no error of the list", k, text)
			}
		}
	}
	s := stateNow(t, c)
	if len(s.Pods) != 1 || len(s.Namespaces) != 1 || len(s.Nodes) != 1 || len(s.Policies) != 1 || len(s.ClusterPolicies) != 1 || len(c.Problems()) > 0 {
		t.Errorf("got %+v with the problems %v", s, c.Problems())
	}
	if c.shared.workloads[digestOf(&s.Pods[0])].pods != 1 {
		t.Errorf("the lists that failed hold memory: %+v", c.shared.workloads)
	}
}

// TestLosses breaks the watch of a kind. Known objects stay, and the loss has the time at which it
// began.
func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, started := New("n1"), time.Now()
		time.Sleep(time.Minute)
		c.Report(Pods, nil) // the request works, but nothing was listed
		if list := c.Losses(); len(list) != int(kinds) || list[0].Kind != Pods || !list[0].Since.Equal(started) {
			t.Fatalf("at the start: %v", list)
		}
		for k, o := range good {
			replace(t, c, k, []byte(o))
		}
		if list := c.Losses(); list != nil {
			t.Fatalf("after the lists: %v", list)
		}
		broke := time.Now()
		for range 3 {
			c.Report(NetworkPolicies, errors.New("connection refused"))
			time.Sleep(time.Hour)
		}
		failed := c.Replace(NetworkPolicies, func(yield func([]byte, error) bool) { yield(nil, errors.New("reset")) })
		want := "networkpolicies since " + broke.UTC().Format(time.RFC3339) + ": connection refused"
		if list := c.Losses(); len(list) != 1 || list[0].String() != want || failed == nil {
			t.Errorf("got %v and the error %v, want %s", list, failed, want)
		}
		if s := stateNow(t, c); len(s.Policies) != 1 {
			t.Errorf("%d policies are in force, want 1", len(s.Policies))
		}
		if c.Report(NetworkPolicies, nil); c.Losses() != nil {
			t.Errorf("followed again: %v", c.Losses())
		}
	})
}
