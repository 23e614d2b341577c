// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func podText(name, node, more string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"namespace":"shop","name":%q,"uid":"uid-%s","annotations":{"k8s.v1.cni.cncf.io/networks":"a"}},"spec":{"nodeName":%q%s}}`, name, name, node, more)
}

// The copy has the definitions, and the pods of this node alone.
func TestCluster(t *testing.T) {
	changed := make(chan struct{}, 1)
	c := NewCluster("n1", changed)
	must(t, c.Replace(Definitions, func(yield func([]byte, error) bool) {
		yield([]byte(`{"metadata":{"namespace":"shop","name":"a","uid":"u1","resourceVersion":"7","annotations":{"k8s.v1.cni.cncf.io/resourceName":"vendor/nic"}},"spec":{"config":"{}"}}`), nil)
	}))
	want := npwg.Definition{Namespace: "shop", Name: "a", UID: "u1", ResourceVersion: "7", Config: "{}", Resource: "vendor/nic"}
	if got := c.Definitions(); len(got) != 1 || got[0] != want || !c.Listed(Definitions) || c.Listed(Pods) || len(changed) != 1 {
		t.Errorf("%+v, %d changes\nwant %+v", got, len(changed), want)
	}
	must(t, c.Set(Pods, podText("web", "n1", "")))
	must(t, c.Set(Pods, podText("elsewhere", "n2", "")))
	if got := c.Pods(); len(got) != 1 || got[0].Name != "web" || got[0].Networks != "a" || got[0].Exempt {
		t.Errorf("%+v", got)
	}
	must(t, c.Set(Pods, podText("web", "n1", `,"hostNetwork":true`)))
	if got := c.Pods(); !got[0].Exempt {
		t.Errorf("%+v", got)
	}
	c.Delete(Pods, "shop", "web")
	if got := c.Pods(); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

// A list that breaks off changes nothing: the files would lose definitions.
func TestBrokenList(t *testing.T) {
	c := NewCluster("n1", make(chan struct{}, 1))
	must(t, c.Set(Definitions, []byte(`{"metadata":{"namespace":"shop","name":"a"},"spec":{"config":"{}"}}`)))
	for _, end := range []struct {
		object string
		err    error
	}{{"", errors.New("cut")}, {`{"metadata":{}}`, nil}} {
		err := c.Replace(Definitions, func(yield func([]byte, error) bool) { yield([]byte(end.object), end.err) })
		if err == nil || c.Listed(Definitions) || len(c.Definitions()) != 1 {
			t.Errorf("%v, listed %v, %+v", err, c.Listed(Definitions), c.Definitions())
		}
	}
}

// A definition whose configuration is no text is none. Without spec.config, it would stand for a file of the node (3.4.1).
func TestDefinitionThatCannotBeRead(t *testing.T) {
	c := NewCluster("n1", make(chan struct{}, 1))
	for _, config := range []string{`{"type":"macvlan"}`, `7`} {
		must(t, c.Set(Definitions, []byte(`{"metadata":{"namespace":"shop","name":"a"},"spec":{"config":"{}"}}`)))
		must(t, c.Set(Definitions, []byte(`{"metadata":{"namespace":"shop","name":"a"},"spec":{"config":`+config+`}}`)))
		if got := c.Definitions(); len(got) > 0 {
			t.Errorf("%s: %+v", config, got)
		}
	}
	must(t, c.Set(Definitions, []byte(`{"metadata":{"namespace":"shop","name":"a"}}`))) // 3.2.4
	if got := c.Definitions(); len(got) != 1 || got[0].Config != "" {
		t.Errorf("%+v", got)
	}
}

// plan returns a plan of shop/web with one network.
func plan(container, uid string, state npwg.State) *npwg.Plan {
	return &npwg.Plan{
		Network: "pods", ContainerID: container, IfName: "eth0", Pod: npwg.Pod{Namespace: "shop", Name: "web", UID: uid},
		Interfaces: []npwg.Interface{{Definition: "shop/" + container, IfName: "net1", State: state}},
	}
}

func webPod(uid, runtime string) Pod {
	return Pod{Pod: npwg.Pod{Namespace: "shop", Name: "web", UID: uid}, RuntimeUID: runtime}
}

// Whose status a plan is.
func TestStatuses(t *testing.T) {
	for name, c := range map[string]struct {
		plans []*npwg.Plan
		pod   Pod
		want  string // the definition of the status
	}{
		"attached":                   {[]*npwg.Plan{plan("c1", "u1", npwg.Done)}, webPod("u1", "u1"), "shop/c1"},
		"an ADD runs":                {[]*npwg.Plan{plan("c1", "u1", npwg.Attempted)}, webPod("u1", "u1"), ""},
		"the sandbox is made again":  {[]*npwg.Plan{plan("c1", "u1", npwg.Done), plan("c2", "u1", npwg.Done)}, webPod("u1", "u1"), "shop/c2"},
		"it is being made again":     {[]*npwg.Plan{plan("c1", "u1", npwg.Done), plan("c2", "u1", npwg.Attempted)}, webPod("u1", "u1"), ""},
		"a pod took another's name":  {[]*npwg.Plan{plan("c1", "u1", npwg.Done)}, webPod("u2", "u2"), ""},
		"a static pod":               {[]*npwg.Plan{plan("c1", "hash", npwg.Done)}, webPod("u1", "hash"), "shop/c1"},
		"no UID":                     {[]*npwg.Plan{plan("c1", "", npwg.Done)}, webPod("u1", "u1"), ""},
		"a static pod without a UID": {[]*npwg.Plan{plan("c1", "", npwg.Done)}, webPod("u1", ""), ""},
	} {
		list, errs := Statuses(c.plans, []Pod{c.pod})
		if (len(list) == 1) != (c.want != "") || len(errs) > 0 || len(list) == 1 && !strings.Contains(list[0].Text, `"name": "`+c.want+`"`) {
			t.Errorf("%s: %+v, %v", name, list, errs)
		}
	}
}

// A static pod has the runtime's UID in an annotation that counts only together with the one of the kubelet.
func TestStaticPod(t *testing.T) {
	for annotations, want := range map[string]string{
		`{"kubernetes.io/config.mirror":"h","kubernetes.io/config.hash":"h"}`: "h",
		`{"kubernetes.io/config.hash":"h"}`:                                   "u1",
		`null`:                                                                "u1",
	} {
		c := NewCluster("n1", make(chan struct{}, 1))
		must(t, c.Set(Pods, []byte(`{"metadata":{"namespace":"shop","name":"web","uid":"u1","annotations":`+annotations+`},"spec":{"nodeName":"n1"}}`)))
		if got := c.Pods()[0].RuntimeUID; got != want {
			t.Errorf("%s: %q, want %q", annotations, got, want)
		}
	}
}

// A status that cannot be made is an error about its pod, and the others are made.
func TestBrokenPlan(t *testing.T) {
	broken := plan("c1", "u1", npwg.Done)
	broken.Default = json.RawMessage("{")
	other := webPod("u2", "u2")
	second := plan("c2", "u2", npwg.Done)
	list, errs := Statuses([]*npwg.Plan{broken, second}, []Pod{webPod("u1", "u1"), other})
	if len(list) != 1 || list[0].Pod != other || len(errs) != 1 || !strings.Contains(errs[0].Error(), "status of pod shop/web: result of network pods") {
		t.Errorf("%+v, %v", list, errs)
	}
}

// A status is written once, and again if it changes. What the API server refuses is not repeated for a while.
func TestSent(t *testing.T) {
	var s Sent
	at := time.Unix(1000, 0)
	pod := webPod("u1", "u1")
	one, two := Status{pod, "one"}, Status{pod, "two"}
	step := func(what string, status Status, later time.Duration, want bool) {
		t.Helper()
		if due := s.Due([]Status{status}, []Pod{pod}, at.Add(later)); (len(due) == 1) != want {
			t.Errorf("%s: %+v, want it written: %v", what, due, want)
		}
	}
	step("new", one, 0, true)
	s.Note(one, nil, at)
	step("written, and the copy is old", one, time.Hour, false)
	step("changed", two, 0, true)
	s.Note(two, errors.New("too large"), at)
	step("refused", two, refusedLasts-1, false)
	if err := s.Refused(&pod); err == nil {
		t.Error("the refusal is forgotten")
	}
	step("refused long ago", two, refusedLasts, true)
	step("another one", one, 0, true)
	have := one
	have.Pod.Status = "one"
	step("the API server has it", have, 0, false)
	s.Due(nil, nil, at)
	if err := s.Refused(&pod); err != nil {
		t.Errorf("of a pod that is gone: %v", err)
	}
}

// What is wrong with pods, as far as the objects say.
func TestProblems(t *testing.T) {
	now := time.Unix(1000, 0)
	j := Judge{Now: now, Attached: map[string]bool{"attached": true}, Definitions: []npwg.Definition{
		{Namespace: "shop", Name: "a", Config: `{"type":"macvlan"}`}, {Namespace: "shop", Name: "broken", Config: `{`},
		{Namespace: "shop", Name: "thin"}, {Namespace: "infra", Name: "a", Config: `{}`}, {Namespace: "default", Name: "a", Config: `{}`},
	}}
	for _, c := range []struct {
		networks string
		change   func(*Pod)
		want     string
	}{
		{"a, thin, infra/a, default/a", nil, ""},
		{"", nil, ""},
		{"A", nil, `annotation k8s.v1.cni.cncf.io/networks is not valid: network 1, "A"`},
		{"a@eth0", nil, "network shop/a cannot have the interface eth0"},
		{`[{"name":"a","default-route":["10.0.0.1"]},{"name":"a","default-route":["10.0.0.2"]}]`, nil, "both want the default route of IPv4"},
		{"later", nil, "there is no NetworkAttachmentDefinition shop/later: create it"},
		{"later", func(p *Pod) { p.Created = now.Add(-patience + 1) }, ""},
		{"later", func(p *Pod) { p.Exempt = true }, ""},
		{"later", func(p *Pod) { p.UID = "attached" }, ""},
		{"a,broken", nil, "NetworkAttachmentDefinition shop/broken: its configuration is no JSON object"},
	} {
		pod := webPod("u1", "u1")
		pod.Networks = c.networks
		if c.change != nil {
			c.change(&pod)
		}
		list := j.Problems([]Pod{pod})
		if (len(list) == 1) != (c.want != "") || len(list) == 1 && !strings.Contains(list[0].Text, c.want) {
			t.Errorf("%s: %+v, want %q", c.networks, list, c.want)
		}
	}
	j.Isolated = true
	var pods []Pod
	for _, n := range []string{"a", "infra/a", "default/a"} {
		pod := webPod(n, n)
		pod.Networks = n
		pods = append(pods, pod)
	}
	if list := j.Problems(pods); len(list) != 1 || list[0].Pod.UID != "infra/a" || !strings.Contains(list[0].Text, "refers to target namespace infra") {
		t.Errorf("isolated: %+v", list)
	}
}

// The problems of pods have one order, so that they do not seem to change.
func TestCompare(t *testing.T) {
	a, b := Pod{Pod: npwg.Pod{Namespace: "a", Name: "z"}}, Pod{Pod: npwg.Pod{Namespace: "b", Name: "a"}}
	list := []Pod{b, a}
	slices.SortFunc(list, func(a, b Pod) int { return a.Compare(&b) })
	if list[0] != a {
		t.Errorf("%+v", list)
	}
}

// A generation differs after each change of its kind, and after its first list, which may have nothing.
func TestGeneration(t *testing.T) {
	c := NewCluster("n1", make(chan struct{}, 1))
	none := func(func([]byte, error) bool) {}
	var last [kinds]uint64
	for _, step := range []struct {
		about             string
		do                func() error
		definitions, pods bool // whether it changes
	}{
		{"the first list", func() error { return c.Replace(Definitions, none) }, true, false},
		{"the same list", func() error { return c.Replace(Definitions, none) }, false, false},
		{"a pod", func() error { return c.Set(Pods, podText("web", "n1", "")) }, false, true},
		{"the same pod", func() error { return c.Set(Pods, podText("web", "n1", "")) }, false, false},
		{"a pod elsewhere", func() error { return c.Set(Pods, podText("other", "n2", "")) }, false, false},
		{"a definition", func() error { return c.Set(Definitions, []byte(`{"metadata":{"namespace":"shop","name":"a"}}`)) }, true, false},
		{"no definition", func() error { c.Delete(Definitions, "shop", "a"); return nil }, true, false},
	} {
		must(t, step.do())
		for k, want := range [kinds]bool{step.definitions, step.pods} {
			now := c.Generation(Kind(k))
			if (now != last[k]) != want {
				t.Errorf("%s: the generation of %s was %d and is %d", step.about, Kind(k), last[k], now)
			}
			last[k] = now
		}
	}
}
