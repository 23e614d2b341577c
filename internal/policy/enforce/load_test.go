// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// After each Load, the kernel has exactly the objects that the program needs, whether the Enforcer
// already knows the kernel's state or reads it.
func TestLoad(t *testing.T) {
	e, fw := open(t)
	closed := `shop/web {"podSelector":{}}`
	cluster := `c {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"ns":"bank"}}}]}]}`
	for _, policies := range [][]string{{closed}, {closed, cluster}, {cluster}, {cluster, `shop/web {"podSelector":{},"egress":[{}]}`}, {}, {closed}} {
		p := policy.Compile(shop(t, policies...))
		load(t, e, p)
		same(t, e, p)
	}
	load(t, e, policy.Compile(everyForm(t)))
	load(t, New(fw, Options{}), policy.Compile(shop(t)))
	if got := nftTool(t, "list", "table", "inet", nft.TableName); hasPolicies(got) {
		t.Errorf("without policies there is\n%s", got)
	}
}

// A program without policies makes no table.
func TestNothing(t *testing.T) {
	e, _ := open(t)
	load(t, e, policy.Compile(shop(t)))
	if got := nftTool(t, "list", "ruleset"); got != "" {
		t.Errorf("got a table:\n%s", got)
	}
}

// An Enforcer notices that another program deleted everything, or loaded other policies. Its next
// Load puts everything back.
func TestChangedByAnother(t *testing.T) {
	e, fw := open(t)
	p := policy.Compile(everyForm(t))
	for name, damage := range map[string]func(){
		"flush ruleset": func() { nftTool(t, "flush", "ruleset") },
		"another agent": func() { load(t, New(fw, Options{}), policy.Compile(shop(t, `shop/x {"podSelector":{}}`))) },
		"no revision":   func() { nftTool(t, "delete", "map", "inet", nft.TableName, nft.SetPolicy) },
	} {
		load(t, e, p)
		if err := e.Check(); err != nil {
			t.Errorf("%s: Check before it: %v", name, err)
		}
		damage()
		if err := e.Check(); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: Check got %v, want ErrChanged", name, err)
		}
		load(t, e, p)
		same(t, e, p)
	}
}

// A new Enforcer repairs what another program changed in our table.
func TestRepair(t *testing.T) {
	e, fw := open(t)
	p := policy.Compile(shop(t, `shop/web {"podSelector":{},"ingress":[{"from":[{"podSelector":{}}]}]}`))
	load(t, e, p)
	table := []string{"inet", nft.TableName}
	nftTool(t, append([]string{"flush", "chain"}, append(table, chainEgress)...)...)
	nftTool(t, append([]string{"delete", "chain"}, append(table, chainIngress)...)...)
	nftTool(t, append([]string{"add", "chain"}, append(table, chainIngress, "{ type filter hook output priority 3; }")...)...)
	nftTool(t, append([]string{"flush", "map"}, append(table, dispatchOf(policy.Ingress, 0))...)...)
	nftTool(t, append([]string{"add", "chain"}, append(table, "policy_in_0123456789abcdef")...)...)
	nftTool(t, append([]string{"add", "element"}, append(table, ofFamily(kindPods, 0, "shop{}"), "{ 10.9.9.9 }")...)...)
	e.Forget()
	load(t, e, p)
	same(t, e, p)
	if diffs, err := fw.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("Verify found %q, %v", diffs, err)
	}
	// The repair of a table that lost its schema number does not touch policies.
	nftTool(t, append([]string{"flush", "map"}, append(table, nft.SetSchema)...)...)
	if err := fw.Status(); !errors.Is(err, nft.ErrDamaged) {
		t.Errorf("Status got %v, want ErrDamaged", err)
	}
	if err := fw.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, e, p)
}

// An Enforcer is killed between any two transactions. The next one completes the work.
func TestCrash(t *testing.T) {
	from := policy.Compile(shop(t, `shop/a {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}]}`))
	to := policy.Compile(everyForm(t))
	for done := range 4 {
		e, fw := open(t)
		load(t, e, from)
		before, err := e.before()
		must(t, err)
		p, err := planOf(before, stateOf(to, false), nil)
		must(t, err)
		lists := []*[]step{&p.prepare, &p.switchOver, &p.clean}
		for _, list := range lists[min(done, 3):] {
			*list = nil
		}
		must(t, e.apply(t.Context(), p))
		load(t, New(fw, Options{}), to)
		same(t, e, to)
		nftTool(t, "flush", "ruleset")
	}
}

// If the answer to a transaction is lost, Commit plans it again, and finds that it is done.
func TestLostAnswer(t *testing.T) {
	e, fw := open(t)
	work := &transaction{Enforcer: e, steps: []step{addCounter("policy_in_x")}, next: 7}
	for range 2 {
		fw.Queue(work)
		must(t, fw.Commit(t.Context()))
	}
	fw.Queue(&transaction{Enforcer: e, next: 8})
	if err := fw.Commit(t.Context()); !errors.Is(err, ErrChanged) {
		t.Errorf("the transaction of another Enforcer got %v, want ErrChanged", err)
	}
}

// A node may have many pods with long names.
func TestManyPods(t *testing.T) {
	s := shop(t, `shop/all {"podSelector":{}}`)
	for n := range 600 {
		s.Pods = append(s.Pods, policy.Pod{Namespace: "shop", Name: strings.Repeat("n", 200) + fmt.Sprint(n), Node: "n1", Phase: "Running",
			Addresses: addrs(fmt.Sprintf("10.3.%d.%d", n/200, n%200), fmt.Sprintf("fd03::%d", n))})
	}
	e, _ := open(t)
	p := policy.Compile(s)
	load(t, e, p)
	same(t, e, p)
	load(t, e, policy.Compile(shop(t)))
}

// If another program made a chain or a set in the meantime, an Enforcer that does not know of it
// corrects it.
func TestMadeByAnother(t *testing.T) {
	e, _ := open(t)
	load(t, e, policy.Compile(shop(t, `shop/a {"podSelector":{"matchLabels":{"pod":"a"}}}`)))
	p := policy.Compile(shop(t, `shop/a {"podSelector":{"matchLabels":{"pod":"a"}}}`, `shop/b {"podSelector":{"matchLabels":{"pod":"b"}},"ingress":[{"from":[{"podSelector":{}}]}]}`))
	chain := kindPod[policy.Ingress] + hash("shop/b")
	nftTool(t, "add", "chain", "inet", nft.TableName, chain)
	nftTool(t, "add", "rule", "inet", nft.TableName, chain, "drop")
	nftTool(t, "add", "element", "inet", nft.TableName, dispatchOf(policy.Ingress, 0), "{ 10.1.1.2 : goto "+chain+" }")
	nftTool(t, "add", "set", "inet", nft.TableName, ofFamily(kindPods, 0, "shop{}"), "{ type ipv4_addr; }")
	load(t, e, p)
	same(t, e, p)
}

// Differences are written for people.
func TestDifferences(t *testing.T) {
	e, _ := open(t)
	web := `shop/web {"podSelector":{"matchLabels":{"pod":"a"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`
	load(t, e, policy.Compile(shop(t, web)))
	s := shop(t, web)
	s.Pods[2].Labels = labels("pod", "b") // shop/c
	got, err := e.Differences(policy.Compile(s), nil)
	want := []string{
		"add 1 element to " + ofFamily(kindPods, 0, "shop{pod=b}") + " (shop{pod=b})",
		"add 1 element to " + ofFamily(kindPods, 1, "shop{pod=b}") + " (shop{pod=b})",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A large program is prepared in small transactions.
func TestBatches(t *testing.T) {
	steps := make([]step, 0, 10)
	for n := range 10 {
		steps = append(steps, step{messages: 40 + n})
	}
	got := batches(steps)
	total := 0
	for _, b := range got {
		size := 0
		for _, s := range b {
			size += s.messages
		}
		if total += len(b); size > 150 {
			t.Errorf("a batch has %d messages", size)
		}
	}
	if total != len(steps) || len(got) != 4 {
		t.Errorf("got %d steps in %d batches", total, len(got))
	}
}
