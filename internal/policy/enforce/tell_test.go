// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

const toldTo = 9472

// The rules that tell are as nft prints them, and nft loads its own listing. An Enforcer that does not tell removes them.
func TestGoldenTell(t *testing.T) {
	_, fw := open(t)
	tells := Options{Tell: toldTo}
	p := policy.Compile(everyForm(t))
	load(t, New(fw, tells), p)
	all := nftTool(t, "list", "ruleset")
	var rules []string
	for line := range strings.Lines(all) {
		if strings.Contains(line, " log ") {
			rules = append(rules, strings.TrimSpace(line)+"\n")
		}
	}
	compareGolden(t, "tell.golden", strings.Join(rules, ""))
	saved := filepath.Join(t.TempDir(), "saved.nft")
	must(t, os.WriteFile(saved, []byte(all), 0o600))
	nftTool(t, "flush", "ruleset")
	nftTool(t, "-f", saved)
	same(t, New(fw, tells), p)
	if do, err := nft.TellForged(toldTo).Plan(fw); do != nil || err != nil {
		t.Errorf("nft's form of the rules for forged packets is changed: %v", err)
	}
	load(t, New(fw, Options{}), p)
	if got := nftTool(t, "list", "ruleset"); strings.Contains(got, " log ") {
		t.Errorf("without the choice there is\n%s", got)
	}
}

// teller is a pair of which the node listens, with a third address whose packets the node sends to the server.
type teller struct {
	*pair
	other netip.Addr
}

func newTeller(t *testing.T) *teller {
	p := newPair(t, Options{Tell: toldTo})
	w := &teller{p, netip.MustParseAddr("10.1.1.3")}
	p.node.route(t, w.other, "v1")
	return w
}

// send sends so many datagrams of the client, each to another port, from 1000 on.
func (w *teller) send(to string, n int) {
	w.t.Helper()
	must(w.t, w.client.Do(func() error {
		for port := range n {
			if err := sendUDP(fmt.Sprintf("%s:%d", to, 1000+port)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// counted returns how many packets a tail has dropped.
func (w *teller) counted(name string) (n uint64) {
	must(w.t, w.node.Do(func() error {
		list, err := w.enforcer.fw.PolicyCounters()
		for _, c := range list {
			if c.Name == name {
				n = c.Packets
			}
		}
		return err
	}))
	return n
}

const isolateAll = `shop/none {"podSelector":{"matchExpressions":[{"key":"pod","operator":"NotIn","values":["a"]}]},"policyTypes":["Ingress"]}`

// A flow is told once, and each of its packets is counted. Nothing is told of a packet that passes.
func TestTellsAFlowOnce(t *testing.T) {
	w := newTeller(t)
	w.serve("[::]:80")
	w.load(onB + fromA80 + "]}")
	conn := w.subscribe(toldTo)
	if !w.answers(w.client, "10.1.1.2:80", true) {
		t.Fatal("port 80 does not answer")
	}
	for range 20 {
		w.send("10.1.1.2", 1)
		w.send("[fd01::1:2]", 1)
	}
	got := logs(t, conn)
	want := []logEntry{
		{Prefix(policy.Ingress, CauseIsolated), netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2"), unix.IPPROTO_UDP},
		{Prefix(policy.Ingress, CauseIsolated), netip.MustParseAddr("fd01::1:1"), netip.MustParseAddr("fd01::1:2"), unix.IPPROTO_UDP},
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
	if n := w.counted("policy_dropin_isolated"); n != 40 {
		t.Errorf("counted %d packets, want 40", n)
	}
}

// A flood at one pod is told within limits, fills no set, and does not hide a single packet to another pod.
func TestTellsBesideAFlood(t *testing.T) {
	w := newTeller(t)
	w.load(isolateAll)
	conn := w.subscribe(toldTo)
	began := time.Now()
	const flood = 3000
	w.send("10.1.1.2", flood)
	w.send(w.other.String(), 1)
	most := 1 + 20 + 10*int(time.Since(began).Seconds()+1)
	to := make(map[netip.Addr]int)
	for _, l := range logs(t, conn) {
		to[l.to]++
	}
	if n := to[netip.MustParseAddr("10.1.1.2")]; n < 20 || n > most {
		t.Errorf("told %d packets of the flood, want 20 to %d", n, most)
	}
	if n := to[w.other]; n != 1 {
		t.Errorf("told %d packets to the other pod, want 1", n)
	}
	if n := w.counted("policy_dropin_isolated"); n != flood+1 {
		t.Errorf("counted %d packets, want %d", n, flood+1)
	}
	var told []nft.Member
	must(t, w.node.Do(func() error {
		all, err := w.enforcer.fw.ReadTable(table().Family, nft.TableName)
		must(t, err)
		told, err = all.Members("policy_toldin4")
		return err
	}))
	if len(told) > most+1 {
		t.Errorf("the set of flows has %d elements, want at most %d", len(told), most+1)
	}
}

// Each cause has its own prefix and counter.
func TestTellsCauses(t *testing.T) {
	w := newTeller(t)
	conn := w.subscribe(toldTo)
	from, to := netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2")
	deny := `guard {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"%s":[{"action":"Deny","%s":[{"namespaces":{}}]}]}`
	for _, c := range []struct {
		policy string
		way    policy.Direction
		cause  Cause
	}{
		{isolateAll, policy.Ingress, CauseIsolated},
		{`shop/none {"podSelector":{},"policyTypes":["Egress"]}`, policy.Egress, CauseIsolated},
		{fmt.Sprintf(deny, "ingress", "from"), policy.Ingress, CauseDenied},
		{fmt.Sprintf(deny, "egress", "to"), policy.Egress, CauseDenied},
	} {
		w.load(c.policy)
		w.nft("flush set inet patchbay policy_toldin4; flush set inet patchbay policy_toldout4")
		before := w.counted(tailOf(c.way, c.cause))
		w.send(to.String(), 1)
		if got, want := logs(t, conn), []logEntry{{Prefix(c.way, c.cause), from, to, unix.IPPROTO_UDP}}; !slices.Equal(got, want) {
			t.Errorf("%s %s: told %+v, want %+v", c.way, c.cause, got, want)
		}
		if n := w.counted(tailOf(c.way, c.cause)) - before; n != 1 {
			t.Errorf("%s %s: counted %d packets, want 1", c.way, c.cause, n)
		}
	}
}

func (w *teller) nft(commands string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "commands.nft")
	must(w.t, os.WriteFile(file, []byte(commands), 0o600))
	must(w.t, w.node.Do(func() error { nftTool(w.t, "-f", file); return nil }))
}

// The packets that a pod sends from an address that is not its own are told by their link.
func TestTellsForged(t *testing.T) {
	f := newForgerWith(t, Options{Tell: toldTo})
	f.attach()
	f.load()
	w := &teller{pair: f.pair}
	conn := w.subscribe(toldTo)
	if f.passes("10.1.1.3", "10.1.1.2", "10.1.1.2") {
		t.Fatal("a forged packet passes")
	}
	want := logEntry{nft.PrefixForged, netip.MustParseAddr("10.1.1.3"), netip.MustParseAddr("10.1.1.2"), unix.IPPROTO_UDP}
	if got := logs(t, conn); len(got) != 1 || got[0] != want {
		t.Errorf("told %+v, want %+v", got, want)
	}
	if n := w.counted(nft.CountForged); n != 3 {
		t.Errorf("counted %d packets, want 3", n)
	}
}

// untailed returns what an agent of a release without tails wants in the kernel.
func untailed(p *policy.Program) *wanted {
	w := stateOf(p, true)
	w.version = 3
	ofLater := func(name string) bool { return ofTail(name) || strings.HasPrefix(name, kindEnded) }
	gone := func(name string, _ bool) bool { return ofLater(name) || ofKernel(name) }
	maps.DeleteFunc(w.chains, gone)
	maps.DeleteFunc(w.sets, gone)
	maps.DeleteFunc(w.counters, gone)
	maps.DeleteFunc(w.lines, func(name string, _ []line) bool { return ofLater(name) })
	for name, lines := range w.lines {
		lines = slices.DeleteFunc(lines, func(l line) bool { return l.what == answering })
		w.lines[name] = lines
		for i := range lines {
			if lines[i].dropping() {
				lines[i].verdict, lines[i].chain = expr.VerdictDrop, ""
			}
		}
	}
	return w
}

// A table of a release without tails is changed by the first Load, and the rules of that release, too, are understood.
func TestTailsComeWithLoad(t *testing.T) {
	_, fw := open(t)
	p := policy.Compile(everyForm(t))
	e := New(fw, Options{Tell: toldTo})
	checkSources(fw, true, false)
	must(t, fw.Commit(t.Context()))
	before, err := e.before()
	must(t, err)
	old := untailed(p)
	todo, err := planOf(before, old, nil)
	must(t, err)
	todo.prepare = slices.DeleteFunc(todo.prepare, func(s step) bool { return s.what == markBase(0).what })
	must(t, e.apply(t.Context(), todo))
	if got := nftTool(t, "list", "ruleset"); strings.Contains(got, "goto policy_drop") {
		t.Fatalf("the former table has\n%s", got)
	}
	must(t, WithView(fw, func(v *View) error {
		list, err := v.Judge(Packet{From: netip.MustParseAddr("10.1.1.3"), To: netip.MustParseAddr("10.1.1.1"), Protocol: l4.TCP, Port: 1})
		if err == nil && (len(list) == 0 || slices.ContainsFunc(list, func(j Judgement) bool {
			return slices.ContainsFunc(j.Reasons, func(r Reason) bool { return r.Foreign })
		})) {
			t.Errorf("the former rules are judged as %+v", list)
		}
		return err
	}))
	load(t, e, p)
	same(t, New(fw, Options{Tell: toldTo}), p)
	for line := range strings.Lines(policies(nftTool(t, "list", "table", "inet", "patchbay"))) {
		if strings.Contains(line, " drop") && strings.Contains(line, "comment") {
			t.Errorf("this rule of the former release is still there: %s", line)
		}
	}
}

// If the kernel refuses the rules that tell, the policies are in force without them, until the next comparison.
func TestKernelWithoutLog(t *testing.T) {
	var said error
	_, fw := open(t)
	e := New(fw, Options{Tell: toldTo, Untold: func(err error) { said = err }})
	if !e.hush(fmt.Errorf("load: %w", unix.ENOENT)) || said == nil {
		t.Fatalf("an Enforcer that was refused goes on telling: %v", said)
	}
	if e.hush(unix.ENOENT) {
		t.Error("an Enforcer that does not tell tries again and again")
	}
	p := policy.Compile(everyForm(t))
	load(t, e, p)
	if got := nftTool(t, "list", "ruleset"); strings.Contains(got, " log ") {
		t.Errorf("there is\n%s", got)
	}
	e.Forget()
	load(t, e, p)
	if got := nftTool(t, "list", "ruleset"); !strings.Contains(got, " log ") || said != nil {
		t.Errorf("after the comparison nothing is told, or %v is said", said)
	}
}
