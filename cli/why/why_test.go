// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"shop/db":            "shop/db, any port",
		"shop/db:5432":       "shop/db, 5432/tcp",
		"shop/db:53/udp":     "shop/db, 53/udp",
		"shop/db:5000/SCTP":  "shop/db, 5000/sctp",
		"shop/db:icmp":       "shop/db, icmp",
		"shop/db:udp":        "shop/db, any udp port",
		"10.1.0.5":           "10.1.0.5, any port",
		"10.1.0.5:80":        "10.1.0.5, 80/tcp",
		"fd00::5":            "fd00::5, any port",
		"fd00::80":           "fd00::80, any port",
		"[fd00::5]":          "fd00::5, any port",
		"[fd00::5]:80/tcp":   "fd00::5, 80/tcp",
		"node:10250":         "node, 10250/tcp",
		"world":              "world, any port",
		"":                   "has no name",
		":80":                "has no name",
		"shop/db:0":          `port "0" is not`,
		"shop/db:65536":      `port "65536" is not`,
		"shop/db:/tcp":       `port "" is not`,
		"shop/db:80/icmp":    `protocol "icmp" is not`,
		"shop/db:http":       `protocol "http" is not`,
		"shop/db:80/tcp/udp": `protocol "tcp/udp" is not`,
		"[fd00::5":           `is not`,
	} {
		target, err := ParseTarget(text)
		got := target.Word + ", " + target.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// Two pods talk by the addresses of a network that they share, and of one family.
func TestPairs(t *testing.T) {
	web := End{Interfaces: []Interface{{Network: "pods", Addrs: addrs("10.1.0.2", "fd01::2")}, {Network: "storage", Addrs: addrs("10.2.0.2")}}}
	for name, c := range map[string]struct {
		to   End
		want string
	}{
		"both networks":  {End{Interfaces: []Interface{{Network: "storage", Addrs: addrs("10.2.0.3")}, {Network: "pods", Addrs: addrs("10.1.0.3", "fd01::3")}}}, "10.1.0.2-10.1.0.3 fd01::2-fd01::3 10.2.0.2-10.2.0.3"},
		"one network":    {End{Interfaces: []Interface{{Network: "pods", Addrs: addrs("10.1.0.3")}}}, "10.1.0.2-10.1.0.3"},
		"none is shared": {End{Interfaces: []Interface{{Network: "other", Addrs: addrs("10.3.0.3")}}}, "10.1.0.2-10.3.0.3 10.2.0.2-10.3.0.3"},
		"an address":     {End{Interfaces: []Interface{{Addrs: addrs("fd03::3")}}}, "fd01::2-fd03::3"},
		"the world":      {End{Interfaces: []Interface{{Addrs: []netip.Addr{{}}}}}, "10.1.0.2-invalid IP fd01::2-invalid IP 10.2.0.2-invalid IP"},
	} {
		var got []string
		for _, p := range Pairs(web, c.to) {
			got = append(got, p[0].String()+"-"+p[1].String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// node is a node with the pods shop/web and shop/db.
type node struct {
	*testing.T
	host    Host
	web, db End
}

func newNode(t *testing.T) *node {
	n := &node{T: t, host: Host{FW: nft.Open(t.TempDir()), Paths: paths.Paths{State: t.TempDir()}}}
	t.Cleanup(func() {
		n.load()
		n.must(n.host.FW.Close())
	})
	end := func(name, uid string, a ...string) End {
		return End{Word: "shop/" + name, Kind: Pod, Interfaces: []Interface{{Network: "pods", Pod: mirror.Pod{Namespace: "shop", Name: name, UID: uid}, Addrs: addrs(a...)}}}
	}
	n.web, n.db = end("web", "1", "10.1.0.2", "fd01::2"), end("db", "2", "10.1.0.3", "fd01::3")
	return n
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// decider decides if shop has these policies, which are a name and a specification.
func (n *node) decider(policies ...string) *policy.Decider {
	s := &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}}
	for _, e := range []End{n.web, n.db} {
		p := e.Interfaces[0]
		s.Pods = append(s.Pods, policy.Pod{
			Namespace: "shop", Name: p.Pod.Name, UID: p.Pod.UID, Node: "n1", Phase: "Running", Addresses: p.Addrs,
			Labels: policy.LabelsOf(map[string]string{"app": p.Pod.Name}),
		})
	}
	for _, text := range policies {
		name, spec, _ := strings.Cut(text, " ")
		np, err := policy.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":"shop","name":%q},"spec":%s}`, name, spec))
		n.must(err)
		s.Policies = append(s.Policies, np)
	}
	return policy.NewDecider(s)
}

func (n *node) load(policies ...string) {
	e := enforce.New(n.host.FW, enforce.Options{KeepConnections: true})
	n.must(e.Load(context.Background(), n.decider(policies...).Program, nil))
}

func (n *node) mirror(policies ...string) {
	_, err := mirror.Write(n.host.Paths, n.decider(policies...))
	n.must(err)
}

func (n *node) ask(from, to End, target string) *Answer {
	n.Helper()
	parsed, err := ParseTarget(target)
	n.must(err)
	a, err := n.host.Ask(from, to, parsed)
	n.must(err)
	return a
}

const (
	closed  = `closed {"podSelector":{"matchLabels":{"app":"db"}}}`
	only4   = `only4 {"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{"from":[{"ipBlock":{"cidr":"10.1.0.0/16"}}]}]}`
	another = `another {"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{}]}`
)

// If the addresses of a pod have different answers, each is printed.
func TestFamiliesDiffer(t *testing.T) {
	n := newNode(t)
	n.load(only4)
	n.mirror(only4)
	a := n.ask(n.web, n.db, "x:80")
	want := `mixed: shop/web -> shop/db, 80/tcp
allowed: 10.1.0.2 -> 10.1.0.3
  egress of shop/web: allowed, no policy selects it
  ingress of shop/db: allowed, rule ingress[0] of networkpolicy shop/only4 allows it
dropped: fd01::2 -> fd01::3
  egress of shop/web: allowed, no policy selects it
  ingress of shop/db: dropped, no rule allows it, and it is isolated by networkpolicy shop/only4
`
	if got := a.Text(); got != want {
		t.Errorf("got\n%s", got)
	}
}

// If one answer is not known, neither is the answer for all packets.
func TestTogether(t *testing.T) {
	for text, want := range map[string]Verdict{
		"allowed": Allowed, "dropped dropped": Dropped, "allowed dropped": Mixed, "dropped allowed allowed": Mixed,
		"allowed dropped unknown": Unknown, "unknown allowed": Unknown, "": "",
	} {
		var list []Packet
		for _, v := range strings.Fields(text) {
			list = append(list, Packet{Verdict: Verdict(v)})
		}
		if got := together(list); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestMirror compares the mirror with the kernel, for the direction that the packet takes.
func TestMirror(t *testing.T) {
	n := newNode(t)
	n.load(closed)
	n.mirror(closed)
	if a := n.ask(n.web, n.db, "x:80"); a.Verdict != Dropped || len(a.Cautions) > 0 {
		t.Errorf("got %+v", a)
	}
	n.mirror(closed, another)
	a := n.ask(n.web, n.db, "x:80")
	if want := "kernel and mirror disagree about ingress of shop/db: the mirror has networkpolicy shop/another, the kernel does not"; len(a.Cautions) != 1 || !strings.HasPrefix(a.Cautions[0], want) {
		t.Errorf("got %q, want %q", a.Cautions, want)
	}
	if a := n.ask(n.db, n.web, "x:80"); len(a.Cautions) > 0 {
		t.Errorf("the other direction: %q", a.Cautions)
	}
	file := filepath.Join(n.host.Paths.State, "node", "policy", "pods", "2")
	n.must(os.WriteFile(file, []byte("x"), 0o600))
	a = n.ask(n.web, n.db, "x:80")
	if a.Verdict != Dropped || !slices.ContainsFunc(a.Cautions, func(c string) bool { return strings.Contains(c, file) }) {
		t.Errorf("a damaged file: %+v", a)
	}
	n.load(another)
	if a := n.ask(n.web, n.db, "x:80"); a.Verdict != Allowed {
		t.Errorf("got %+v, and the kernel allows it", a)
	}
}
