// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

func TestParsePod(t *testing.T) {
	p, err := ParsePod([]byte(`{"metadata":{"namespace":"x","name":"a","labels":{"b":"2","a":"1"},"creationTimestamp":"2026-11-23T08:00:00Z","deletionTimestamp":"2026-11-23T09:00:00Z","uid":"u"},
		"spec":{"nodeName":"n1","hostNetwork":true,
			"containers":[{"name":"c","ports":[{"name":"http","containerPort":80},{"containerPort":81},{"name":"q","containerPort":7,"protocol":"QUIC"}]}],
			"initContainers":[{"restartPolicy":"Always","ports":[{"name":"dns","containerPort":53,"protocol":"UDP"}]},{"ports":[{"name":"init","containerPort":9}]}]},
		"status":{"phase":"Running","podIP":"10.1.1.1","podIPs":[{"ip":"10.1.1.1"},{"ip":"fd01::1"}]}}`))
	want := Pod{Namespace: "x", Name: "a", UID: "u", Node: "n1", Labels: Labels{{"a", "1"}, {"b", "2"}}, Ports: []Port{{"http", l4.TCP, 80}, {"dns", l4.UDP, 53}},
		Addresses: addrs("10.1.1.1", "fd01::1"), Phase: "Running", HostNetwork: true, Leaving: true, Created: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, %v, want %+v", p, err, want)
	}
}

func TestParsePodWithoutAddresses(t *testing.T) {
	if p, err := ParsePod([]byte(`{"metadata":{"namespace":"x","name":"a","creationTimestamp":null},"status":{}}`)); err != nil || p.Addresses != nil {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := ParsePod([]byte(`{"metadata":{},"status":{"podIP":"10.1.1.1"}}`)); err != nil || len(p.Addresses) != 1 {
		t.Errorf("got %+v, %v, want the one address", p, err)
	}
}

// What can be read of a pod counts. A pod whose labels cannot be read is isolated if a policy may
// select it.
func TestParsePodThatCannotBeRead(t *testing.T) {
	p, err := ParsePod([]byte(`{"metadata":{"namespace":"x","name":"a"},"status":{"podIPs":[{"ip":"10.1.1"},{"ip":"fd01::1"}]}}`))
	if err == nil || !strings.HasPrefix(err.Error(), "read pod x/a: ") || p.Unknown || !reflect.DeepEqual(p.Addresses, addrs("fd01::1")) {
		t.Errorf("got %+v, %v, want an error with the pod's name, and the other address", p, err)
	}
	p, err = ParsePod([]byte(`{"metadata":{"labels":{"a":1},"namespace":"x","name":"a"},"spec":{"nodeName":"n1"},"status":{"podIP":"10.1.1.1"}}`))
	if err == nil || !p.Unknown || p.path() != "x/a" || p.Node != "n1" || len(p.Addresses) != 1 {
		t.Errorf("got %+v, %v, want an unknown pod with an address", p, err)
	}
	if p, err = ParsePod([]byte(`{"metadata":{"namespace":"x","na`)); err == nil || p.Name != "" {
		t.Errorf("got %+v, %v, want an error and no name", p, err)
	}
}

func TestParseNode(t *testing.T) {
	n, err := ParseNode([]byte(`{"metadata":{"name":"n1","labels":{"zone":"1"}},"spec":{"podCIDRs":["10.244.1.0/24","fd00:1::/64","x"]},"status":{"addresses":[{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"10.0.0.1"}]}}`))
	if err != nil || !reflect.DeepEqual(n, Node{"n1", Labels{{"zone", "1"}}, addrs("10.0.0.1"), []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}}) {
		t.Errorf("got %+v, %v", n, err)
	}
	n, err = ParseNode([]byte(`{"metadata":{"labels":[],"name":"n1"},"status":{"addresses":[{"address":"10.0.0.1"}]}}`))
	if err == nil || n.Name != "n1" || len(n.Addresses) != 1 {
		t.Errorf("got %+v, %v, want an error, the name and the address", n, err)
	}
}

// The kernel's sets have no zones. One address with two zones would be two for the program: if the node lost one of
// them, the kernel's set would lose the other, too.
func TestZonesOfANode(t *testing.T) {
	n, err := ParseNode([]byte(`{"metadata":{"name":"n1"},"status":{"addresses":[{"address":"2001:db8::1"},{"address":"2001:db8::1%eth0"}]}}`))
	if err != nil || !reflect.DeepEqual(n.Addresses, addrs("2001:db8::1", "2001:db8::1")) {
		t.Errorf("got %v, %v", n.Addresses, err)
	}
}

// Labels of a policy decide nothing, so wrong ones do not break it.
func TestLabelsOfAPolicy(t *testing.T) {
	if p, err := ParseNetworkPolicy([]byte(`{"metadata":{"namespace":"x","name":"a","labels":{"a":1}},"spec":{"podSelector":{}}}`)); err != nil || p.Broken != "" {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestParseNamespace(t *testing.T) {
	n, err := ParseNamespace([]byte(`{"metadata":{"name":"x","labels":{"team":"a"}},"spec":{"finalizers":["kubernetes"]}}`))
	if err != nil || n.Name != "x" || n.Labels.String() != "team=a" {
		t.Errorf("got %+v, %v", n, err)
	}
	if n, err = ParseNamespace([]byte(`{"metadata":{"labels":{"team":1},"name":"x"}}`)); err == nil || n.Name != "x" {
		t.Errorf("got %+v, %v, want an error and the name", n, err)
	}
}

// A specification is written as the API serves it, so a file can hold it.
func TestSpecificationsSurviveJSON(t *testing.T) {
	for _, s := range []*State{shop(t), world(t, `x/a {"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]},"ingress":[{"ports":[{"port":80,"endPort":90},{"port":"http"}]}]}`)} {
		for _, p := range s.Policies {
			if p.Broken != "" {
				continue
			}
			var got NetworkPolicySpec
			text, err := json.Marshal(p.Spec)
			if err == nil {
				err = strict(text, &got)
			}
			if err != nil || !reflect.DeepEqual(got, p.Spec) {
				t.Errorf("%s: got %+v, %v, want %+v", text, got, err, p.Spec)
			}
		}
	}
}

// Two identities with one hash have two numbers, and the sets hold the right one.
func TestHashesMayCollide(t *testing.T) {
	one, two := collision()
	s := world(t, `x/a {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"`+two+`"}}}]}]}`)
	s.pod("x/b").Labels, s.pod("x/c").Labels = Labels{{"pod", one}}, Labels{{"pod", two}}
	s.check(t, "x/b > x/a tcp 80: deny\nx/c > x/a tcp 80: accept")
	if p := Compile(s); len(p.Identities) != 5 { // three in x, one in y and in z
		t.Errorf("got %d identities, want 5:\n%s", len(p.Identities), p)
	}
}

// collision returns two values of the label pod whose identities in namespace x have one hash.
func collision() (one, two string) {
	seen := make(map[Number]string)
	for i := 0; ; i++ {
		pod := fmt.Sprint("p", i)
		n := hash("x{pod=" + pod + "}")
		if seen[n] != "" {
			return seen[n], pod
		}
		seen[n] = pod
	}
}

// Different selectors have different texts, because their sets have these names.
func TestTextsOfSelectors(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range []Selector{
		{}, {MatchLabels: Labels{{"a", "1"}}}, {MatchLabels: Labels{{"a", "1"}, {"b", "2"}}}, {MatchLabels: Labels{{"a", "1, b=2"}}},
		{MatchExpressions: []Requirement{{"a", In, []string{"1", "2"}}}}, {MatchExpressions: []Requirement{{"a", In, []string{"1, 2"}}}},
		{MatchExpressions: []Requirement{{"a", NotIn, []string{"1"}}}}, {MatchExpressions: []Requirement{{"a", Exists, nil}}},
		{MatchExpressions: []Requirement{{"a", DoesNotExist, nil}}},
	} {
		if seen[s.String()] {
			t.Errorf("two selectors have the text %s", s)
		}
		seen[s.String()] = true
	}
	one := Selector{MatchExpressions: []Requirement{{"b", Exists, nil}, {"a", In, []string{"2", "1"}}}}
	two := Selector{MatchExpressions: []Requirement{{"a", In, []string{"1", "2", "2"}}, {"b", Exists, nil}}}
	if one.String() != two.String() {
		t.Errorf("got %s and %s for the same selector", one, two)
	}
}
