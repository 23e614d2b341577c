// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The label of a namespace changes few members of sets, however many pods it has.
func TestChangeOfANamespaceIsSmall(t *testing.T) {
	s := world(t, `x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"z"}},"podSelector":{"matchExpressions":[{"key":"pod","operator":"Exists"}]}}]}]}`)
	for i := range 5000 {
		s.Pods = append(s.Pods, Pod{Namespace: "z", Name: fmt.Sprint("p", i), Node: "n2", Labels: LabelsOf(map[string]string{"pod": "a", "hash": fmt.Sprint(i)}),
			Addresses: addrs(fmt.Sprintf("10.8.%d.%d", i/250, i%250))})
	}
	before := Compile(s)
	s.Namespaces[2].Labels = LabelsOf(map[string]string{"ns": "q"})
	after := Compile(s)
	if !slices.Equal(before.Addresses, after.Addresses) {
		t.Error("addresses change")
	}
	if was, is := before.Sets[0].Members, after.Sets[0].Members; len(was) != 3 || len(is) != 0 {
		t.Errorf("the set had %v, and has %v, want three that leave", was, is)
	}
}

// A new pod adds its address, and changes no number but its own.
func TestChangeOfAPodIsSmall(t *testing.T) {
	s := world(t, `x/a {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}]}`)
	before := Compile(s)
	s.Pods = append(s.Pods, Pod{Namespace: "x", Name: "new", Node: "n2", Labels: LabelsOf(map[string]string{"pod": "0"}), Addresses: addrs("10.8.0.1")})
	after := Compile(s)
	number := hash("x{pod=0}").String()
	if got, want := without(after, before), []string{"identity " + number + " x{pod=0}", "address 10.8.0.1 " + number}; !slices.Equal(got, want) {
		t.Errorf("new is %q, want %q", got, want)
	}
	if gone := without(before, after); len(gone) > 0 {
		t.Errorf("gone is %q", gone)
	}
}

// without returns the lines of a program that another one does not have.
func without(p, other *Program) []string {
	has := strings.Split(other.String(), "\n")
	return slices.DeleteFunc(strings.Split(p.String(), "\n"), func(line string) bool { return slices.Contains(has, line) })
}

// The ranges of nodes come and go with the label of a node, in a set that already exists.
func TestRangesOfNodes(t *testing.T) {
	s := world(t, `c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"role":"db"}}}]}]}`)
	before := Compile(s)
	s.Nodes[1].Labels = LabelsOf(map[string]string{"role": "db"})
	after := Compile(s)
	const name, want = "ranges nodes{role=db}:", " 10.0.0.2 10.244.2.0 10.244.2.1 fd00::2 fd02:2:: fd02:2::1"
	if was, is := before.RangeSets[0].String(), after.RangeSets[0].String(); was != name || is != name+want {
		t.Errorf("had %q, and has %q", was, is)
	}
}
