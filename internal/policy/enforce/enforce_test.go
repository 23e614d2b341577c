// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

var update = flag.Bool("update", false, "write the goldens")

func TestMain(m *testing.M) { nettest.Main(m) }

// open returns an Enforcer of a new namespace, in which the test then runs.
func open(t testing.TB) (*Enforcer, *nft.Conn) {
	t.Helper()
	fw := nft.Open(t.TempDir())
	e := New(fw, Options{})
	t.Cleanup(func() {
		nftTool(t, "flush", "ruleset")
		must(t, fw.Close())
	})
	return e, fw
}

func nftTool(t testing.TB, args ...string) string {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func load(t testing.TB, e *Enforcer, p *policy.Program) {
	t.Helper()
	if err := e.Load(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
}

// shop is a cluster with pods a, b and c in the namespaces shop and bank. Pods have the label pod.
func shop(t testing.TB, policies ...string) *policy.State {
	s := &policy.State{Node: "n1", Nodes: []policy.Node{{Name: "n1", Addresses: addrs("10.0.0.1")}, {Name: "n2", Addresses: addrs("10.0.0.2", "fd00::2")}}}
	for i, ns := range []string{"shop", "bank"} {
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: ns, Labels: labels("ns", ns)})
		for j, pod := range []string{"a", "b", "c"} {
			s.Pods = append(s.Pods, policy.Pod{
				Namespace: ns, Name: pod, Node: "n" + fmt.Sprint(i+1), Labels: labels("pod", pod), Phase: "Running",
				Addresses: addrs(fmt.Sprintf("10.1.%d.%d", i+1, j+1), fmt.Sprintf("fd01::%d:%d", i+1, j+1)),
				Ports:     []policy.Port{{Name: "http", Protocol: l4.TCP, Number: 8080}},
			})
		}
	}
	for _, p := range policies {
		add(t, s, p)
	}
	return s
}

func labels(key, value string) policy.Labels { return policy.LabelsOf(map[string]string{key: value}) }

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// add adds a policy: "shop/web {…}" with a specification, or "deny {…}" for the cluster.
func add(t testing.TB, s *policy.State, text string) {
	t.Helper()
	name, spec, _ := strings.Cut(text, " ")
	ns, name, namespaced := strings.Cut(name, "/")
	var err error
	if namespaced {
		var p policy.NetworkPolicy
		p, err = policy.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q},"spec":%s}`, ns, name, spec))
		s.Policies = append(s.Policies, p)
	} else {
		var p policy.ClusterNetworkPolicy
		p, err = policy.ParseClusterNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":%s}`, ns, spec))
		s.ClusterPolicies = append(s.ClusterPolicies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// everyForm has each kind of rule.
func everyForm(t testing.TB) *policy.State {
	return shop(t,
		`shop/web {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Ingress","Egress"],
			"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}},{"ipBlock":{"cidr":"192.0.2.0/24","except":["192.0.2.64/26"]}}],
				"ports":[{"port":"http"},{"port":9000,"endPort":9009,"protocol":"UDP"},{"protocol":"SCTP"}]},
				{"from":[{"ipBlock":{"cidr":"2001:db8::/32"}},{"ipBlock":{"cidr":"0.0.0.0/0"}}]}],
			"egress":[{"to":[{"namespaceSelector":{}}],"ports":[{"port":"http"}]},{"ports":[{"port":53,"protocol":"UDP"}]},{"ports":[
				{"port":53},{"port":853},{"port":5300,"endPort":5310},{"port":5311},{"port":1},{"port":21},{"port":22},{"port":25},{"port":80},{"port":443},{"port":110},{"port":143},{"port":389},{"port":465},{"port":587},{"port":636},{"port":993},{"port":995},{"port":60000,"endPort":65535},{"protocol":"SCTP"}]},
				{"to":[{"ipBlock":{"cidr":"10.1.0.0/16"}}],"ports":[{"port":"http"}]}]}`,
		`shop/none {"podSelector":{"matchLabels":{"pod":"b"}}}`,
		`pass {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Pass","from":[{"namespaces":{"matchLabels":{"ns":"shop"}}}]}]}`,
		`deny {"tier":"Admin","priority":2,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":22}}}]}],
			"egress":[{"action":"Deny","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":10250}}}]}]}`,
		`own {"tier":"Baseline","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Pass","from":[{"namespaces":{"matchLabels":{"ns":"shop"}}}]},{"action":"Deny","from":[{"namespaces":{}}]}]}`)
}

// The table is the golden file as nft prints it. nft loads its own listing, and afterwards the
// Enforcer finds nothing to change.
func TestGolden(t *testing.T) {
	e, fw := open(t)
	p := policy.Compile(everyForm(t))
	load(t, e, p)
	got := policies(nftTool(t, "list", "table", "inet", nft.TableName))
	compareGolden(t, "table.golden", got)
	saved := filepath.Join(t.TempDir(), "saved.nft")
	all := nftTool(t, "list", "ruleset")
	if err := os.WriteFile(saved, []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	nftTool(t, "flush", "ruleset")
	nftTool(t, "-f", saved)
	if again := nftTool(t, "list", "ruleset"); sorted(again) != sorted(all) {
		t.Errorf("loaded again with nft -f it differs:\n%s", again)
	}
	same(t, New(fw, Options{}), p)
	if diffs, err := fw.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("Verify found %q, %v", diffs, err)
	}
}

// same checks that the kernel has a program and nothing else.
func same(t *testing.T, e *Enforcer, p *policy.Program) {
	t.Helper()
	if diffs, err := e.Differences(p, nil); err != nil || len(diffs) > 0 {
		t.Errorf("the kernel differs: %q, %v", diffs, err)
	}
}

// policies keeps the objects of policies, without the revision, which is random.
func policies(listing string) string {
	var out []string
	for _, block := range strings.Split(listing, "\n\n") {
		words := strings.Fields(block)
		if at := slices.IndexFunc(words, func(w string) bool { return w == "{" }); at > 0 && strings.HasPrefix(words[at-1], "policy_") {
			out = append(out, block)
		}
	}
	return strings.TrimSuffix(strings.Join(out, "\n\n"), "\n}\n") + "\n"
}

func sorted(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if sorted(got) != sorted(string(want)) {
		t.Errorf("%s differs (-update writes it):\n%s", path, got)
	}
}
