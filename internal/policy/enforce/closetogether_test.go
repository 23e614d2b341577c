// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Many ADDs make the base chains at once, while programs with and without policies are loaded.
func TestCloseTogether(t *testing.T) {
	e, fw := open(t)
	run := t.TempDir()
	programs := []*policy.Program{policy.Compile(shop(t, `shop/web {"podSelector":{}}`)), policy.Compile(shop(t))}
	for round := range 5 {
		var all []Closure
		var wg sync.WaitGroup
		for n := range 8 {
			a, _ := closureOf(fmt.Sprint("c", n), addrs(fmt.Sprintf("10.2.%d.%d", round, n+1), fmt.Sprintf("fd02::%d:%d", round, n+1))...)
			all = append(all, a)
			wg.Go(func() {
				one := nft.Open(run)
				defer one.Close() //nolint:errcheck // a test
				Close(one, a, false)
				if err := one.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		must(t, e.Load(t.Context(), programs[round%2], nil))
		wg.Wait()
		baseWorks(t, fw)
		for _, a := range all {
			coveredBy(t, fw, a, true, false)
			Reopen(fw, a)
		}
		must(t, fw.Commit(t.Context()))
	}
	must(t, e.Load(t.Context(), programs[1], nil))
	if got := listing(t); hasPolicies(got) {
		t.Errorf("nothing is closed and there is\n%s", got)
	}
}

// A Load was killed between any two steps while it made the base chains. An ADD completes them.
func TestCloseAfterCrash(t *testing.T) {
	steps := makeBase(0)
	a, key := closureOf("c1", addrs("10.1.1.1")...)
	every := 1
	if testing.Short() { // an emulated machine takes seconds for each
		every = 7
	}
	for n := 0; n < len(steps); n += every {
		e, fw := open(t)
		checkSources(fw, true, false) // as a Load does first
		must(t, fw.Commit(t.Context()))
		must(t, e.transact(t.Context(), steps[:n]))
		closeAll(t, fw, a, false)
		baseWorks(t, fw)
		coveredBy(t, fw, a, true, false)
		must(t, e.Load(t.Context(), policy.Compile(shop(t)), map[netip.Addr]owner.Key{a.Addrs[0]: key}))
		if got := listing(t); hasPolicies(got) {
			t.Errorf("after %d steps and a Load there is\n%s", n, got)
		}
		nftTool(t, "flush", "ruleset")
	}
}

// Whatever is left of the base chains, repair makes them again, and closes each address that no ADD
// closed and no chain judges.
func TestReclose(t *testing.T) {
	table := []string{"inet", nft.TableName}
	for name, damage := range map[string]func(){
		"flush ruleset": func() { nftTool(t, "flush", "ruleset") },
		"no element":    func() { nftTool(t, append([]string{"flush", "set"}, append(table, nft.SetClosedIn4)...)...) },
		"no rules":      func() { nftTool(t, append([]string{"flush", "chain"}, append(table, chainIngress)...)...) },
		"no chain":      func() { nftTool(t, append([]string{"delete", "chain"}, append(table, chainEgress)...)...) },
		"another hook": func() {
			nftTool(t, append([]string{"delete", "chain"}, append(table, chainInput)...)...)
			nftTool(t, append([]string{"add", "chain"}, append(table, chainInput, "{ type filter hook output priority 3; }")...)...)
		},
	} {
		_, fw := open(t)
		a, _ := closureOf("c1", addrs("10.1.1.1", "fd01::1:1")...)
		closeAll(t, fw, a, false)
		if found, err := Reclose(t.Context(), fw, a); err != nil || len(found) > 0 {
			t.Errorf("%s: before it, Reclose found %q, %v", name, found, err)
		}
		damage()
		want, err := Open(fw, a)
		if err != nil || len(want) == 0 {
			t.Errorf("%s: Open found %q, %v", name, want, err)
		}
		if found, err := Reclose(t.Context(), fw, a); err != nil || !slices.Equal(found, want) {
			t.Errorf("%s: Reclose found %q, %v, want %q", name, found, err, want)
		}
		baseWorks(t, fw)
		coveredBy(t, fw, a, true, false)
		nftTool(t, "flush", "ruleset")
	}
}

// An address that a program judges need not be closed.
func TestOpenJudged(t *testing.T) {
	e, fw := open(t)
	load(t, e, policy.Compile(shop(t, `shop/web {"podSelector":{"matchLabels":{"pod":"a"}}}`)))
	for addr, want := range map[string]int{"10.1.1.1": 0, "10.1.1.2": 2} {
		a, _ := closureOf("c1", addrs(addr)...)
		if found, err := Open(fw, a); err != nil || len(found) != want {
			t.Errorf("%s: %q, %v", addr, found, err)
		}
	}
	a, _ := closureOf("c1", addrs("10.1.1.2")...)
	must(t, e.Clear(t.Context()))
	closeAll(t, fw, a, false)
	must(t, e.Clear(t.Context()))
	if got := listing(t); hasPolicies(got) {
		t.Errorf("after Clear there is\n%s", got)
	}
}
