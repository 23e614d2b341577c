// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"text/template"
)

// fill fills the template as containerd does (internal/cri/server, getRoutes).
func fill(t *testing.T, cluster, pods []string) []byte {
	t.Helper()
	tmpl, err := template.New("").Parse(string(Network{Cluster: prefixes(t, cluster)}.Text()))
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for dst, mark := range map[string]string{"0.0.0.0/0": ".", "::/0": ":"} {
		if strings.Contains(strings.Join(pods, " "), mark) {
			routes = append(routes, dst)
		}
	}
	if len(routes) == 2 {
		routes = []string{"0.0.0.0/0", "::/0"}
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, map[string]any{"PodCIDR": pods[0], "PodCIDRRanges": pods, "Routes": routes}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func prefixes(t *testing.T, texts []string) (list []netip.Prefix) {
	t.Helper()
	list, err := Prefixes("prefix", texts)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// IsFilled recognizes what containerd makes from the template, for each family and order. It does
// not recognize a file that differs by a byte, or the agent's own file for a tunnel.
func TestIsFilled(t *testing.T) {
	both := []string{"10.244.0.0/16", "fd00:244::/56"}
	for _, pods := range [][]string{
		{"10.244.1.0/24"}, {"fd00:244:0:1::/64"}, {"10.244.1.0/24", "fd00:244:0:1::/64"}, {"fd00:244:0:1::/64", "10.244.1.0/24"},
	} {
		for _, cluster := range [][]string{nil, both[:1], both} {
			file := fill(t, cluster, pods)
			if !IsFilled(file) {
				t.Errorf("%v %v is not recognized:\n%s", cluster, pods, file)
			}
			for _, change := range [][2]string{{`"ipMasq": true`, `"ipMasq": false`}, {"}\n", "}\n\n"}, {`[{"subnet"`, `[{"gateway": "10.244.1.9", "subnet"`}} {
				if other := bytes.Replace(file, []byte(change[0]), []byte(change[1]), 1); bytes.Equal(other, file) || IsFilled(other) {
					t.Errorf("changed, and recognized:\n%s", other)
				}
			}
		}
	}
	template := Network{Cluster: prefixes(t, both)}
	agent := Network{Cluster: prefixes(t, both), Node: prefixes(t, []string{"10.244.1.0/24"}), MTU: 1450}
	for _, file := range [][]byte{template.Text(), agent.Text(), nil, []byte("{}"), []byte(`{"plugins": [{"plugins": []}]}`), []byte(`{"plugins": [{"plugins": [{}]}]}`)} {
		if IsFilled(file) {
			t.Errorf("recognized:\n%s", file)
		}
	}
}
