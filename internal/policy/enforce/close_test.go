// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

var bothSides = [2]bool{true, true}

// closureOf is the interface of a container with these addresses, closed in both directions.
func closureOf(id string, a ...netip.Addr) (Closure, owner.Key) {
	key := owner.Of("pods", id, "eth0")
	return Closure{Addrs: a, Close: bothSides, Comment: nft.Comment(string(key), "pods", id, "eth0")}, key
}

func closeAll(t testing.TB, fw *nft.Conn, a Closure, purge bool) {
	t.Helper()
	Close(fw, a, purge)
	must(t, fw.Commit(t.Context()))
}

// coveredBy checks what the kernel has for an attachment: for each address and direction, whether it is
// closed and whether it is judged.
func coveredBy(t testing.TB, fw *nft.Conn, a Closure, closed, judged bool) {
	t.Helper()
	a.Close = bothSides
	list, err := coveredIn(fw, a)
	must(t, err)
	for _, h := range list {
		if h.closed != closed || h.judged != judged {
			t.Errorf("%s, %s: closed: %v, judged: %v, want %v, %v", h.addr, h.side, h.closed, h.judged, closed, judged)
		}
	}
	if len(list) != 2*len(a.Addrs) {
		t.Errorf("got %v", list)
	}
}

// baseWorks checks that the base chains do what they should.
func baseWorks(t testing.TB, fw *nft.Conn) {
	t.Helper()
	if wrong, err := wrongBase(fw); err != nil || len(wrong) > 0 {
		t.Errorf("wrong chains: %q, %v", wrong, err)
	}
}

func listing(t testing.TB) string { return nftTool(t, "list", "ruleset") }

// An ADD on a node without policies makes the base chains. nft prints and loads them.
func TestClose(t *testing.T) {
	_, fw := open(t)
	a, _ := closureOf("c1", addrs("10.1.1.1", "fd01::1:1")...)
	closeAll(t, fw, a, false)
	coveredBy(t, fw, a, true, false)
	baseWorks(t, fw)
	if diffs, err := fw.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("Verify found %q, %v", diffs, err)
	}
	saved, all := filepath.Join(t.TempDir(), "saved.nft"), listing(t)
	must(t, os.WriteFile(saved, []byte(all), 0o600))
	nftTool(t, "flush", "ruleset")
	nftTool(t, "-f", saved)
	if again := listing(t); sorted(again) != sorted(all) {
		t.Errorf("loaded again with nft -f it differs:\n%s", again)
	}
	baseWorks(t, fw)
	nftTool(t, "flush", "chain", "inet", nft.TableName, chainInput)
	if wrong, err := wrongBase(fw); err != nil || !slices.Equal(wrong, []string{chainInput}) {
		t.Errorf("the chain is empty, and wrongBase got %q, %v", wrong, err)
	}
}

// An ADD that closes nothing changes nothing.
func TestCloseNothing(t *testing.T) {
	_, fw := open(t)
	a, _ := closureOf("c1", addrs("10.1.1.1")...)
	a.Close = [2]bool{}
	closeAll(t, fw, a, true)
	if got := listing(t); got != "" {
		t.Errorf("got\n%s", got)
	}
}

// Chains of a decision close a direction, too: one may deny.
func TestCloses(t *testing.T) {
	d := policy.Decision{Sides: [2]policy.Side{{}, {Chains: []string{"web"}}}}
	if got := Closes(&d); got != [2]bool{false, true} {
		t.Errorf("got %v", got)
	}
}

// A DEL opens what its owner closed, and nothing else.
func TestOpen(t *testing.T) {
	_, fw := open(t)
	a, _ := closureOf("c1", addrs("10.1.1.1", "fd01::1:1")...)
	b, _ := closureOf("c2", addrs("10.1.1.2")...)
	Reopen(fw, a) // there is no table yet
	must(t, fw.Commit(t.Context()))
	closeAll(t, fw, a, false)
	closeAll(t, fw, b, false)
	Reopen(fw, Closure{Addrs: slices.Concat(a.Addrs, b.Addrs), Comment: a.Comment})
	must(t, fw.Commit(t.Context()))
	coveredBy(t, fw, a, false, false)
	coveredBy(t, fw, b, true, false)
}

// The newest ADD with an address decides about it, even if another attachment closed it before.
func TestCloseAgain(t *testing.T) {
	_, fw := open(t)
	a, _ := closureOf("c1", addrs("10.1.1.1")...)
	b, _ := closureOf("c2", a.Addrs...)
	closeAll(t, fw, a, false)
	closeAll(t, fw, b, false)
	Reopen(fw, a)
	must(t, fw.Commit(t.Context()))
	coveredBy(t, fw, b, true, false)
	b.Close = [2]bool{false, true}
	closeAll(t, fw, b, false)
	if list, err := coveredIn(fw, Closure{Addrs: b.Addrs, Close: bothSides}); err != nil || list[0].closed || !list[1].closed {
		t.Errorf("got %v, %v", list, err)
	}
}

// Load opens only attachments that its program has. It removes the base chains with the last one, if
// no pod has a policy.
func TestLoadOpens(t *testing.T) {
	for _, restart := range []bool{false, true} {
		e, fw := open(t)
		web := policy.Compile(shop(t, `shop/web {"podSelector":{"matchLabels":{"pod":"a"}},"policyTypes":["Ingress","Egress"]}`))
		none := policy.Compile(shop(t))
		a, key := closureOf("c1", addrs("10.1.1.1", "fd01::1:1")...)
		b, _ := closureOf("c2", addrs("10.1.1.2")...)
		known := map[netip.Addr]owner.Key{a.Addrs[0]: key, a.Addrs[1]: key, b.Addrs[0]: key}
		load := func(p *policy.Program, known map[netip.Addr]owner.Key) {
			t.Helper()
			if restart {
				e = New(fw, Options{})
			}
			must(t, e.Load(t.Context(), p, known))
			if diffs, err := e.Differences(p, known); err != nil || len(diffs) > 0 {
				t.Errorf("the kernel differs: %q, %v", diffs, err)
			}
		}
		load(none, nil)
		closeAll(t, fw, a, false)
		closeAll(t, fw, b, false)
		load(none, nil)
		coveredBy(t, fw, a, true, false)
		load(web, nil)
		coveredBy(t, fw, a, true, true)
		want := []string{"remove 1 element from " + nft.SetClosedIn4, "remove 1 element from " + nft.SetClosedIn6, "remove 1 element from " + nft.SetClosedOut4, "remove 1 element from " + nft.SetClosedOut6}
		if diffs, err := e.Differences(web, known); err != nil || !slices.Equal(diffs, want) {
			t.Errorf("Differences got %q, %v", diffs, err)
		}
		load(web, known) // owners has b's address with another owner
		coveredBy(t, fw, a, false, true)
		coveredBy(t, fw, b, true, false)
		load(none, known)
		baseWorks(t, fw)
		coveredBy(t, fw, b, true, false)
		Reopen(fw, b)
		must(t, fw.Commit(t.Context()))
		load(none, nil)
		if got := listing(t); hasPolicies(got) {
			t.Errorf("nothing is closed and there is\n%s", got)
		}
		closeAll(t, fw, a, false) // the base chains come back
		baseWorks(t, fw)
		load(none, known)
	}
}

// meanwhile runs once between a query and the transaction. A Commit that changes chains queries again
// when it has the lock.
type meanwhile struct {
	look int
	do   func()
}

func (m *meanwhile) String() string { return "another transaction" }

func (m *meanwhile) Plan(*nft.Conn) (func(*nftables.Conn) error, error) {
	if m.look--; m.look == 0 {
		m.do()
	}
	return nil, nil
}

// An ADD closes an address after Load has seen that nothing is closed, and before it removes the base
// chains, or opens the former owner of that address.
func TestCloseDuringRelease(t *testing.T) {
	e, fw := open(t)
	other := nft.Open(t.TempDir())
	t.Cleanup(func() { other.Close() }) //nolint:errcheck // a test
	a, key := closureOf("c1", addrs("10.1.1.1")...)
	b, _ := closureOf("c2", a.Addrs...)
	for _, c := range []struct {
		closed []Closure
		known  map[netip.Addr]owner.Key
	}{{nil, nil}, {[]Closure{a}, map[netip.Addr]owner.Key{a.Addrs[0]: key}}} {
		closeAll(t, fw, a, false)
		if c.closed == nil {
			Reopen(fw, a)
			must(t, fw.Commit(t.Context()))
		}
		e.Forget()
		before, err := e.before()
		must(t, err)
		e.base = before.base
		r := &releasing{transaction: *e.transaction(nil), owners: c.known}
		late := &meanwhile{2, func() { closeAll(t, other, b, false) }}
		fw.Queue(r)
		fw.Queue(late)
		must(t, fw.Commit(t.Context()))
		if r.bare {
			t.Error("the base chains were removed")
		}
		baseWorks(t, fw)
		coveredBy(t, fw, b, true, false)
	}
}

// Load removes the base chains after an ADD has found them and before it closes the pod.
func TestReleaseDuringClose(t *testing.T) {
	e, fw := open(t)
	other := nft.Open(t.TempDir())
	t.Cleanup(func() { other.Close() }) //nolint:errcheck // a test
	a, key := closureOf("c1", addrs("10.1.1.1")...)
	b, _ := closureOf("c2", addrs("10.1.1.2")...)
	closeAll(t, fw, a, false)
	none := policy.Compile(shop(t))
	late := &meanwhile{1, func() { must(t, e.Load(t.Context(), none, map[netip.Addr]owner.Key{a.Addrs[0]: key})) }}
	Close(other, b, false)
	other.Queue(late)
	must(t, other.Commit(t.Context()))
	baseWorks(t, fw)
	coveredBy(t, fw, b, true, false)
	must(t, e.Load(t.Context(), none, nil)) // it notices the base chains
	coveredBy(t, fw, b, true, false)
}

// A new pod has the address of a former one, and no agent runs. The ADD removes the address from all
// objects of programs, and the next Load notices.
func TestPurge(t *testing.T) {
	e, fw := open(t)
	p := policy.Compile(everyForm(t))
	must(t, e.Load(t.Context(), p, nil))
	a, _ := closureOf("c9", addrs("10.1.1.1", "fd01::1:1")...)
	a.Close = [2]bool{false, true}
	closeAll(t, fw, a, false)
	if !strings.Contains(listing(t), `10.1.1.1 comment "shop/a"`) {
		t.Error("an agent runs, and the ADD removed what the agent made")
	}
	must(t, e.Check())
	closeAll(t, fw, a, true)
	coveredBy(t, fw, Closure{Addrs: addrs("10.1.1.2")}, false, true)
	list, err := coveredIn(fw, Closure{Addrs: a.Addrs, Close: bothSides})
	must(t, err)
	for _, h := range list {
		if h.judged || h.closed != (h.side == policy.Egress) {
			t.Errorf("%+v", h)
		}
	}
	sets, _, err := fw.Policies()
	must(t, err)
	asked := 0
	for _, set := range sets {
		for _, addr := range a.Addrs {
			if !hasPods(set) || isV6(set) != addr.Is6() {
				continue
			}
			asked++
			if found, err := fw.Find(nft.PolicyElement(set, addr)); err != nil || len(found) > 0 {
				t.Errorf("set %s has %s, %v", set, addr, err)
			}
		}
	}
	if asked < 10 {
		t.Errorf("there are %d sets", asked)
	}
	must(t, e.Load(t.Context(), p, nil))
	same(t, e, p)
}
