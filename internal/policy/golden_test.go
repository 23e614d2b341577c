// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

var update = flag.Bool("update", false, "write the goldens of testdata anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("%s (%v): got\n%s\nwant\n%s", path, err, got, want)
	}
}

// shop returns the world with a policy of each kind.
func shop(t *testing.T) *State {
	return world(t,
		`x/web {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Ingress","Egress"],"ingress":[
			{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}},{"namespaceSelector":{"matchLabels":{"ns":"y"}},"podSelector":{"matchExpressions":[{"key":"pod","operator":"In","values":["c","b"]}]}}],"ports":[{"port":"http"},{"port":9000,"endPort":9009}]},
			{"from":[{"ipBlock":{"cidr":"192.0.2.0/24","except":["192.0.2.64/26"]}}]}],
			"egress":[{"to":[{"namespaceSelector":{}}],"ports":[{"port":"http"}]},{"ports":[{"port":53,"protocol":"UDP"}]}]}`,
		`y/bad {"podSelector":{"matchLabels":{"pod":"c"}},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/40"}}]}]}`,
		`guard {"tier":"Admin","priority":10,"subject":{"namespaces":{"matchLabels":{"ns":"x"}}},"egress":[{"name":"nodes","action":"Deny","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":10250}}}]}]}`,
		`own {"tier":"Baseline","priority":0,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"ns":"z"}}}]}]}`,
	)
}

// The golden shows what a person reads.
func TestGolden(t *testing.T) {
	golden(t, "program.txt", Compile(shop(t)).String())
}

// A reason names who decided.
func TestReasons(t *testing.T) {
	program := Compile(shop(t))
	for _, c := range []struct {
		from, to string
		proto    l4.Protocol
		port     uint16
		want     string
	}{
		{"10.1.1.2", "10.1.1.1", l4.TCP, 80, "egress of x/b: accept, no policy denies it\n" +
			"ingress of x/a: accept, by rule ingress[0] of networkpolicy x/web"},
		{"10.1.1.1", "10.0.0.2", l4.TCP, 10250, "egress of x/a: deny, by rule egress[0] nodes of clusternetworkpolicy guard"},
		{"10.1.1.1", "10.1.3.1", l4.TCP, 81, "egress of x/a: deny, no rule allows it, and it is isolated by networkpolicy x/web"},
		{"10.1.3.1", "10.1.2.1", l4.TCP, 81, "ingress of y/a: deny, by rule ingress[0] of clusternetworkpolicy own"},
		{"10.1.3.1", "10.1.2.3", l4.TCP, 81, "ingress of y/c: deny, no rule allows it, and it is isolated by networkpolicy y/bad"},
		{"10.0.0.1", "10.1.2.3", l4.TCP, 81, "ingress of y/c: accept, its node may always reach it"},
		{"10.1.2.3", "10.1.2.3", l4.TCP, 81, "egress of y/c: accept, no policy denies it\n" +
			"ingress of y/c: accept, no NetworkPolicy keeps a pod from itself"},
		{"10.1.3.1", "10.1.3.2", l4.TCP, 81, "accept: neither end is a pod of this node"},
	} {
		_, why := program.Allows(addrs(c.from)[0], addrs(c.to)[0], c.proto, c.port)
		if why.String() != c.want {
			t.Errorf("%s to %s: got\n%s\nwant\n%s", c.from, c.to, why, c.want)
		}
	}
}
