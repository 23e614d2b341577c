// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// passage is the path of a packet through the chains of one of our tables. The packet is neither to
// nor from 127.0.0.0/8, and only the sets in contain its key.
type passage struct {
	layout
	demand         []setSpec // sets on demand that the table has
	in             []string
	rules, lookups int
}

// base goes through the base chains that an established packet meets. The kernel evaluates the chains
// for translation of addresses only for the first packet of a connection.
func (p *passage) base() {
	for _, c := range p.chains {
		if c.hook != nil && c.typ != nftables.ChainTypeNAT {
			p.chain(c.name)
		}
	}
}

// chain goes through a chain. It reports whether the packet's path ends in it.
func (p *passage) chain(name string) bool {
	var rules []match
	for _, c := range p.chains {
		for _, r := range c.rules {
			if c.name == name {
				rules = append(rules, r.exprs)
			}
		}
	}
	for _, s := range p.demand {
		if s.chain() == name {
			rules = append(rules, s.rules()...)
		}
	}
	return slices.ContainsFunc(rules, p.rule)
}

func (p *passage) rule(m match) bool {
	p.rules++
	ofAddress := false // the rule has loaded a part of an address
	for _, e := range m {
		switch e := e.(type) {
		case *expr.Payload:
			ofAddress = true
		case *expr.Cmp:
			if ofAddress {
				return false // not 127.0.0.0/8
			}
		case *expr.Lookup:
			if p.lookups++; !slices.Contains(p.in, e.SetName) {
				return false
			}
		case *expr.Verdict:
			return e.Kind != expr.VerdictJump || p.chain(e.Chain)
		}
	}
	return false
}

// TestLookupsOfAnEstablishedPacket: a packet of an established connection meets few rules and, on most
// nodes, no lookup.
func TestLookupsOfAnEstablishedPacket(t *testing.T) {
	for _, c := range []struct {
		name           string
		family         nftables.TableFamily
		demand, in     []string
		rules, lookups int
	}{
		{"of an open network", nftables.TableFamilyINet, nil, nil, 4, 0},
		{"on a node with an isolated network", nftables.TableFamilyINet, []string{SetIsolation}, nil, 5, 1},
		{"from an isolated network to another", nftables.TableFamilyINet, []string{SetIsolation}, []string{SetIsolation}, 9, 5},
		{"on a node with an internal network", nftables.TableFamilyINet, []string{SetInternal}, nil, 6, 2},
		{"with the right MAC address", nftables.TableFamilyBridge, nil, []string{SetSpoofAllowed, SetSpoofChecked}, 1, 1},
		{"through an unchecked port", nftables.TableFamilyBridge, nil, nil, 2, 2},
	} {
		p := passage{layout: layoutOf(c.family), demand: demanded(c.demand), in: c.in}
		if p.base(); p.rules != c.rules || p.lookups != c.lookups {
			t.Errorf("%s: %d rules with %d lookups, want %d with %d", c.name, p.rules, p.lookups, c.rules, c.lookups)
		}
	}
}

// TestOnDemand: a new table has a set on demand, and the rules that look it up, only after its first
// element. They stay when the element goes.
func TestOnDemand(t *testing.T) {
	c := open(t)
	c.Add(attachment()[1])
	commit(t, c)
	count := func(chain string) int {
		t.Helper()
		rules, err := c.ListRules(nftables.TableFamilyINet, TableName, chain)
		if err != nil {
			t.Fatal(err)
		}
		return len(rules)
	}
	for _, chain := range demandChains() {
		if n := count(chain); n != 0 {
			t.Errorf("a new table has %d rules in chain %s", n, chain)
		}
	}
	for range 2 {
		c.Add(Isolate("cni0", "pods"))
		commit(t, c)
		if n := count(chainClosed); n != 1 {
			t.Errorf("chain %s has %d rules", chainClosed, n)
		}
		c.Remove(Isolate("cni0", "pods"))
		commit(t, c)
	}
	c.Add(Internal("cni0", "pods")...)
	c.Remove(Isolate("cni0", "pods"))
	commit(t, c)
	if n := count(chainClosed); n != 3 {
		t.Errorf("chain %s has %d rules", chainClosed, n)
	}
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
}

// The rules of random ports are as the kernel and nft have them.
func TestAnyPort(t *testing.T) {
	c := open(t)
	for _, p := range []string{"10.1.0.0/16", "fd00:1::/64"} {
		c.Add(AnyPort(netip.MustParsePrefix(p), "pods"))
	}
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	list := nftTool(t, "list", "ruleset")
	for _, rule := range []string{"ip saddr . ip daddr @anyport4 masquerade fully-random", "ip6 saddr . ip6 daddr @anyport6 masquerade fully-random"} {
		if !strings.Contains(list, rule) {
			t.Errorf("no %q in\n%s", rule, list)
		}
	}
	reload(t, c, list)
}
