// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/test/policytest"
)

// table is a program as a kernel holds it: it refuses what nftables refuses.
type table struct {
	nodes     map[netip.Addr]bool
	addresses map[netip.Addr]Number
	sets      map[string]map[Number]bool
	ranges    map[string]map[Range]bool
	chains    map[string]Chain
	pods      map[string]LocalPod
}

func newTable() *table {
	return &table{make(map[netip.Addr]bool), make(map[netip.Addr]Number), make(map[string]map[Number]bool),
		make(map[string]map[Range]bool), make(map[string]Chain), make(map[string]LocalPod)}
}

// put changes one element of a map, and checks that the operation fits.
func put[K comparable, V any](m map[K]V, op Op, k K, v V) error {
	if _, is := m[k]; is == (op == Add) {
		return fmt.Errorf("operation %d, and present is %t", op, is)
	}
	if m[k] = v; op == Remove {
		delete(m, k)
	}
	return nil
}

func (t *table) apply(c Change) (err error) {
	switch o := c.Object.(type) {
	case NodeAddress:
		err = put(t.nodes, c.Op, o.Addr, true)
	case Address:
		err = put(t.addresses, c.Op, o.Addr, o.Identity)
	case SetName:
		if len(t.sets[o.Name]) > 0 {
			err = fmt.Errorf("it has members")
		} else {
			err = put(t.sets, c.Op, o.Name, make(map[Number]bool))
		}
	case RangeSetName:
		if len(t.ranges[o.Name]) > 0 {
			err = fmt.Errorf("it has ranges")
		} else {
			err = put(t.ranges, c.Op, o.Name, make(map[Range]bool))
		}
	case Member:
		err = put(t.sets[o.Set], c.Op, o.Number, true)
	case Span:
		for r := range t.ranges[o.RangeSet] {
			if c.Op == Add && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0 {
				err = fmt.Errorf("it overlaps %s", r)
			}
		}
		if err == nil {
			err = put(t.ranges[o.RangeSet], c.Op, o.Range, true)
		}
	case Chain:
		err = put(t.chains, c.Op, o.Name, o)
	case LocalPod:
		err = put(t.pods, c.Op, o.Name, o)
	}
	if err == nil {
		err = t.whole()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

// whole checks that everything that is referred to is there.
func (t *table) whole() error {
	for _, p := range t.pods {
		for _, name := range slices.Concat(p.Sides[0].Chains, p.Sides[1].Chains) {
			if _, ok := t.chains[name]; !ok {
				return fmt.Errorf("pod %s has no chain %s", p.Name, name)
			}
		}
	}
	for _, c := range t.chains {
		for _, r := range c.Rules {
			if r.Set != "" && t.sets[r.Set] == nil || r.RangeSet != "" && t.ranges[r.RangeSet] == nil {
				return fmt.Errorf("chain %s has no set or range set for %s", c.Name, r)
			}
		}
	}
	return nil
}

// program returns what the table enforces.
func (t *table) program() *Program {
	p := &Program{}
	for a := range t.nodes {
		p.Node = append(p.Node, a)
	}
	for a, n := range t.addresses {
		p.Addresses = append(p.Addresses, Address{a, n})
	}
	slices.SortFunc(p.Addresses, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	for name, members := range t.sets {
		s := Set{Name: name}
		for n := range members {
			s.Members = append(s.Members, n)
		}
		slices.Sort(s.Members)
		p.Sets = append(p.Sets, s)
	}
	for name, spans := range t.ranges {
		b := RangeSet{Name: name}
		for r := range spans {
			b.Ranges = append(b.Ranges, r)
		}
		slices.SortFunc(b.Ranges, func(a, b Range) int { return a.First.Compare(b.First) })
		p.RangeSets = append(p.RangeSets, b)
	}
	for _, c := range t.chains {
		p.Chains = append(p.Chains, c)
	}
	for _, l := range t.pods {
		p.Pods = append(p.Pods, l)
	}
	p.sort()
	return p
}

// decisions returns the verdicts for packets, one letter each.
func decisions(p *Program, packets []policytest.Probe) string {
	var b strings.Builder
	for _, k := range packets {
		proto, port := packetOf(k)
		v, _ := p.Allows(k.From, k.To, proto, port)
		b.WriteString(v.String()[:1])
	}
	return b.String()
}

// While changes are applied, every decision is the old program's until Switch, and the new one's
// after it. At the end the table is the new program.
func TestDiff(t *testing.T) {
	switched := 0
	for seed := range uint64(150) {
		g := policytest.NewGenerator(seed, policytest.Small)
		before, kernel := &Program{}, newTable()
		for range 5 {
			state, err := stateOf(g.Clone())
			if err != nil {
				t.Fatal(err)
			}
			if len(state.Nodes) > 0 {
				state.Node = state.Nodes[0].Name
			}
			packets := g.Probes()
			g.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
			packets = packets[:min(len(packets), 50)]
			after := Compile(&state)
			c := Diff(before, after)
			if decisions(before, packets) != decisions(after, packets) {
				switched++
			}
			if err := kernel.follow(c, before, after, packets); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, c)
			}
			if again := Diff(after, Compile(&state)); !again.Empty() {
				t.Fatalf("seed %d: the same state gives changes:\n%s", seed, again)
			}
			before = after
			g.Change()
		}
	}
	if switched < 200 {
		t.Errorf("%d of the changes changed decisions, want 200: the test tests little", switched)
	}
}

// follow applies changes, and checks the decisions after each of them.
func (t *table) follow(c Changes, before, after *Program, packets []policytest.Probe) error {
	was, is := decisions(before, packets), decisions(after, packets)
	for i, list := range [][]Change{c.Prepare, c.Switch, c.Clean} {
		for _, change := range list {
			if err := t.apply(change); err != nil {
				return err
			}
			if i == 1 {
				continue
			}
			if got := decisions(t.program(), packets); i == 0 && got != was || i == 2 && got != is {
				return fmt.Errorf("after %s: decisions are %s, before %s, afterwards %s", change, got, was, is)
			}
		}
	}
	want := *after
	want.Identities, want.Problems = nil, nil
	if got := t.program().String(); got != want.String() {
		return fmt.Errorf("got\n%s\nwant\n%s", got, &want)
	}
	return nil
}

// The label of a namespace changes few members of sets, however many pods it has.
func TestDiffOfANamespaceIsSmall(t *testing.T) {
	s := world(t, `x/a {"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"ns":"z"}},"podSelector":{"matchExpressions":[{"key":"pod","operator":"Exists"}]}}]}]}`)
	for i := range 5000 {
		s.Pods = append(s.Pods, Pod{Namespace: "z", Name: fmt.Sprint("p", i), Node: "n2", Labels: LabelsOf(map[string]string{"pod": "a", "hash": fmt.Sprint(i)}),
			Addresses: addrs(fmt.Sprintf("10.8.%d.%d", i/250, i%250))})
	}
	before := Compile(s)
	s.Namespaces[2].Labels = LabelsOf(map[string]string{"ns": "q"})
	if c := Diff(before, Compile(s)); len(c.Switch) != 3 || len(c.Prepare)+len(c.Clean) != 0 {
		t.Errorf("got %d changes, want those of three members:\n%.2000s", len(c.Switch), c)
	}
}

// A new pod changes its address, and no number but its own.
func TestDiffOfAPodIsSmall(t *testing.T) {
	s := world(t, `x/a {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}]}`)
	before := Compile(s)
	s.Pods = append(s.Pods, Pod{Namespace: "x", Name: "new", Node: "n2", Labels: LabelsOf(map[string]string{"pod": "0"}), Addresses: addrs("10.8.0.1")})
	want := "switch\n+ address 10.8.0.1 " + hash("x{pod=0}").String() + "\n"
	if got := Diff(before, Compile(s)).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Rules look at the ranges of nodes at once, so they change together with everything else, also
// if there were none before.
func TestDiffOfNodes(t *testing.T) {
	s := world(t, `c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"role":"db"}}}]}]}`)
	before := Compile(s)
	s.Nodes[1].Labels = LabelsOf(map[string]string{"role": "db"})
	after := Compile(s)
	want := "switch\n"
	for _, a := range []string{"10.0.0.2", "10.244.2.0", "10.244.2.1", "fd00::2", "fd02:2::", "fd02:2::1"} {
		want += "+ range " + a + " of ranges nodes{role=db}\n"
	}
	if got := Diff(before, after).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Diff(after, before).String(); got != strings.ReplaceAll(want, "+", "-") {
		t.Errorf("got\n%s\nwant the reverse of\n%s", got, want)
	}
}
