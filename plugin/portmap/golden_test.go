// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// TestGolden compares the table as nft lists it, and the output of `patchbay explain` before it.
func TestGolden(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	for _, tc := range []struct{ name, conf string }{
		{"plain", ports(both)},
		{"host-address", ports(`{"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
			{"hostPort": 443, "containerPort": 8443, "hostIP": "2001:db8:1::1"}`)},
		{"masq-all", ports(webPort, `"masqAll": true`)},
		{"no-snat", ports(webPort, `"snat": false`)},
		{"conditions", ports(webPort, `"conditionsV4": ["!", "-s", "192.0.2.0/24"]`, `"conditionsV6": ["-i", "eth+"]`)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, web, _ := world(t)
			n.BridgeNetfilter(false)
			flush(t)
			a := of(web)
			golden(t, tc.name+".explain", strings.ReplaceAll(explain(t, a, tc.conf), web.Path, "NETNS"))
			nothingLeft(t)
			a.must(t, spec.Add, tc.conf)
			golden(t, tc.name+".nft", ofAttachment(nftTool(t, "list", "table", "inet", "patchbay")))
			a.del(t)
		})
	}
}

// explain runs an ADD in a dry session.
func explain(t *testing.T, a *attachment, conf string) string {
	t.Helper()
	var b strings.Builder
	a.dry = func(line string) { fmt.Fprintln(&b, line) }
	defer func() { a.dry = nil }()
	a.must(t, spec.Add, conf)
	return b.String()
}

// ofAttachment keeps the sets that have elements, and the chains of conditions. A golden file of
// internal/nft has the rest of the table.
func ofAttachment(table string) string {
	var out []string
	for _, block := range strings.Split(table, "\n\n") {
		if strings.Contains(block, "elements = ") && !strings.Contains(block, "map schema") || strings.Contains(block, "chain cond") {
			out = append(out, strings.TrimSuffix(block, "\n}\n"))
		}
	}
	return strings.Join(out, "\n\n") + "\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if endpointtest.Updates() {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}

// A range of ports arrives as one mapping for each port. One transaction adds all of them.
func TestManyPorts(t *testing.T) {
	n, web, other := world(t)
	var list []string
	for port := 20000; port < 21000; port++ {
		list = append(list, fmt.Sprintf(`{"hostPort": %d, "containerPort": 80, "protocol": "%s"}`, port, [...]string{"tcp", "udp"}[port%2]))
	}
	conf := ports(strings.Join(list, ","))
	a, b := of(web), of(other)
	a.must(t, spec.Add, conf)
	a.must(t, spec.Check, conf)
	if got := elements(t); got < 4*len(list) {
		t.Errorf("%d elements, want two for each of %d mappings and family", got, len(list))
	}
	expect(t, "first", n.Client, "tcp", node.Uplink4+":20000", "web "+node.Client4)
	expect(t, "last", n.Client, "udp", node.Uplink4+":20999", "web "+node.Client4)
	if err := b.call(t, spec.Add, ports(`{"hostPort": 19999, "containerPort": 80}, `+list[500])); err == nil {
		t.Error("one of them was given away")
	}
	expect(t, "of the refused", n.Client, "tcp", node.Uplink4+":19999", "refused")
	a.del(t)
	nothingLeft(t)
}
