// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
)

// policyLab is an agent of node n1 that enforces network policies in this namespace.
type policyLab struct{ *lab }

func newPolicyLab(t *testing.T) *policyLab {
	l := &policyLab{newLab(t, 1, 2)}
	runNFT(t, "flush ruleset")
	t.Cleanup(func() { runNFT(t, "flush ruleset") })
	l.namespace("shop", "team=a")
	return l
}

func runNFT(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("nft", command).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

func (l *policyLab) kind(k policies.Kind) *jsonKind { return l.api.kinds.of(k) }

// labels turns "a=b,c=d" into a map.
func labels(list string) map[string]string {
	out := map[string]string{}
	for _, word := range strings.Split(list, ",") {
		if key, value, ok := strings.Cut(word, "="); ok {
			out[key] = value
		}
	}
	return out
}

func (l *policyLab) namespace(name, list string) {
	l.api.labelled(name, labels(list))
}

// pod makes a pod of a node.
func (l *policyLab) pod(node, name, list, addr string) {
	l.kind(policies.Pods).put(podText(node, name, list, addr))
}

func podText(node, name, list, addr string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":"uid-%s","labels":%s},"spec":{"nodeName":%q},"status":{"phase":"Running","podIP":%q}}`,
		name, name, text(labels(list)), node, addr)
}

// policy makes a NetworkPolicy of namespace shop.
func (l *policyLab) policy(name, spec string) {
	l.kind(policies.NetworkPolicies).put(fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q},"spec":%s}`, name, spec))
}

// added writes what the ADD of a pod writes.
func (l *policyLab) added(name string, addrs ...string) *record.Record {
	l.Helper()
	r := &record.Record{Plugin: policyPlugin, Owner: owner.Of("pods", name, "eth0"), Network: "pods", ContainerID: name, IfName: "eth0", Pod: "shop/" + name}
	r.Policed = &record.Policed{Namespace: "shop", Name: name, UID: "uid-" + name}
	for _, a := range addrs {
		r.Policed.Addrs = append(r.Policed.Addrs, netip.MustParseAddr(a))
	}
	d := record.New(l.dir)
	defer d.Close()
	must(l.T, d.Write(r))
	return r
}

// table returns our table as nft prints it.
func (l *policyLab) table() string {
	out, _ := exec.Command("nft", "list", "table", "inet", "patchbay").CombinedOutput()
	return string(out)
}

// judged reports whether packets to or from an address are judged.
func (l *policyLab) judged(addr string) bool {
	out, _ := exec.Command("nft", "list", "map", "inet", "patchbay", "policy_ingress4").CombinedOutput()
	return strings.Contains(string(out), addr+" ")
}

func (l *policyLab) awaitJudged(addr string, want bool) {
	l.Helper()
	l.await(fmt.Sprintf("%s is judged: %v", addr, want), func() bool { return l.judged(addr) == want })
}

// programs returns how many programs were put in force.
func (l *policyLab) programs() int {
	_, rest, _ := strings.Cut(httpRecorder(l.Handler(), "/metrics"), `patchbay_node_policy_programs_total{result="success"} `)
	n, _ := strconv.Atoi(strings.Split(rest, "\n")[0]) // 0 before the first one
	return n
}

const (
	forWeb   = `{"podSelector":{"matchLabels":{"app":"web"}}}`
	allShop  = `{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]}]}`
	webAddr  = "10.244.1.5"
	nextAddr = "10.244.1.6"
)

// decision returns what an ADD of a pod would do for ingress.
func (l *policyLab) decision(pod policymirror.Pod) policy.Side {
	l.Helper()
	d, err := policymirror.Read(l.opts.Paths, pod)
	must(l.T, err)
	return d.Sides[policy.Ingress]
}

// A policy is put in force when it is created, follows the labels of pods and namespaces, and ends when
// it is deleted. The mirror follows too.
func TestNetworkPolicy(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	l.await("the lock that tells ADDs", func() bool { return durable.Locked(policymirror.InForce(l.opts.Paths)) })
	if strings.Contains(l.table(), "policy") {
		t.Errorf("without policies there is\n%s", l.table())
	}
	l.policy("closed", forWeb)
	l.awaitJudged(webAddr, true)
	if !l.decision(policymirror.Pod{Namespace: "shop", Name: "web-0", UID: "uid-web-0"}).Isolated {
		t.Error("the mirror does not isolate web-0")
	}
	l.pod("n1", "web-0", "app=db", webAddr)
	l.awaitJudged(webAddr, false)
	l.policy("closed", allShop)
	l.awaitJudged(webAddr, true)
	other := podText("n2", "other", "", "10.244.2.9")
	l.kind(policies.Pods).put(other)
	l.await("the peer's address", func() bool { return strings.Contains(l.table(), "10.244.2.9") })
	l.namespace("shop", "team=b")
	l.await("no peer's address", func() bool { return !strings.Contains(l.table(), "10.244.2.9") })
	l.kind(policies.NetworkPolicies).remove("shop/closed")
	l.awaitJudged(webAddr, false)
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
}

// An ADD's record gives the pod its chains, although the API shows no address yet. Its DEL removes them.
func TestPolicyOfANewPod(t *testing.T) {
	l := newPolicyLab(t)
	l.policy("closed", forWeb)
	l.pod("n1", "web-0", "app=web", "")
	l.pod("n1", "db-0", "app=db", "")
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	began := time.Now()
	r := l.added("web-0", webAddr)
	l.awaitJudged(webAddr, true)
	t.Logf("a record was in force after %v", time.Since(began))
	l.added("db-0", nextAddr)
	l.added("nobody", "10.244.1.7")
	l.awaitJudged("10.244.1.7", true)
	if l.judged(nextAddr) {
		t.Error("a pod that no policy selects is judged")
	}
	d := record.New(l.dir)
	defer d.Close()
	must(t, d.Remove(r.Network, r.Owner, r.Plugin))
	l.awaitJudged(webAddr, false)
}

// closed reports whether an ADD has closed an address, and the agent has not opened it.
func closed(addr string) bool {
	out, _ := exec.Command("nft", "list", "set", "inet", "patchbay", nft.SetClosedIn4).CombinedOutput()
	return strings.Contains(string(out), addr+" ")
}

// closureOf returns what an ADD closes for a pod that a policy selects in both directions.
func closureOf(r *record.Record) enforce.Closure {
	return enforce.Closure{Addrs: r.Policed.Addrs, Close: [2]bool{true, true}, Comment: nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName)}
}

// An ADD closes a pod, and the agent opens it when its program has the pod. If the ADD is slow, the
// agent has the record long before.
func TestPolicyOpensANewPod(t *testing.T) {
	l := newPolicyLab(t)
	l.policy("closed", forWeb)
	for i := range 12 {
		l.pod("n1", fmt.Sprint("web-", i), "app=web", "")
	}
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	fw := nft.Open(l.dir)
	defer fw.Close() //nolint:errcheck // committed
	slow := 0
	for i := range 12 {
		addr := fmt.Sprint("10.244.1.", 10+i)
		r := l.added(fmt.Sprint("web-", i), addr)
		if i%2 == 0 {
			l.awaitJudged(addr, true)
		}
		enforce.Close(fw, closureOf(r), false)
		must(t, fw.Commit(t.Context()))
		began := time.Now()
		l.await(addr+" is open", func() bool { return !closed(addr) && l.judged(addr) })
		took := time.Since(began)
		if t.Logf("%s was opened after %v", addr, took); took > time.Second {
			slow++
		}
	}
	if slow > 2 { // a busy machine is late sometimes
		t.Errorf("%d of 12 pods were opened after more than a second", slow)
	}
	if l.trouble.mine()[policyChanged] != "" {
		t.Error(l.trouble.mine()[policyChanged])
	}
}

// TestPolicyBurst makes 1,000 policies at once.
func TestPolicyBurst(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	before := l.programs()
	for i := range 1000 {
		l.policy(fmt.Sprint("p", i), fmt.Sprintf(`{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":%d}]}]}`, i+1))
	}
	l.await("the last policy", func() bool { return strings.Contains(l.table(), "1000") && l.programs() > before })
	time.Sleep(2 * collect.Longest)
	if n := l.programs() - before; n > 5 {
		t.Errorf("%d programs for one burst", n)
	}
}

// TestPolicyFlush deletes the kernel's rules. A second later they are there again.
func TestPolicyFlush(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	for _, damage := range []string{
		"flush ruleset", "flush table inet patchbay", "delete table inet patchbay", "flush map inet patchbay policy_ingress4", "flush chain inet patchbay policy_ingress",
	} {
		took := time.Hour
		for n := 0; n < 3 && took > time.Second; n++ { // a busy machine is late once, not each time
			l.rest()
			whole := l.table()
			runNFT(t, damage)
			began := time.Now()
			l.await("the table after "+damage, func() bool { return sameRules(l.table(), whole) })
			took = time.Since(began)
		}
		if t.Logf("%s: right again after %v", damage, took); took > time.Second {
			t.Errorf("%s: right again after %v", damage, took)
		}
	}
	l.awaitProblem(policyChanged)
}

// rest waits until the agent has answered the changes of another program so far. It answers the next one
// without a pause.
func (l *policyLab) rest() {
	l.Helper()
	n := l.Agent.policy
	l.await("rest", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		rested := time.Since(n.restored.last) > 2*collect.Longest
		if rested {
			n.restored = pace{}
		}
		return rested
	})
}

// sameRules compares the policies in two tables.
func sameRules(a, b string) bool { return rules(a) == rules(b) }

// rules returns the policies' chains, sets and maps, in one order.
func rules(table string) string {
	var out []string
	for _, object := range strings.Split(table, "\n\t}") {
		if strings.Contains(object, " policy_") && !strings.Contains(object, "counter policy_") || strings.Contains(object, "chain policy_") {
			out = append(out, strings.TrimSpace(object))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// Two agents on one node, and an agent that starts again, change nothing.
func TestPolicyTwoAgents(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	second := &policyLab{&lab{T: t, api: l.api, fabric: &fakeFabric{mtu: 1500}, dir: t.TempDir()}}
	silent := listen(t)
	second.start()
	second.await("its first program", func() bool { return second.programs() > 0 })
	second.stop()
	l.stop()
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	if events := silent(); len(events) > 0 {
		t.Errorf("it changed %v", events)
	}
	second.start()
	second.await("its first program", func() bool { return second.programs() > 0 })
	l.policy("closed", allShop)
	l.await("both know it", func() bool { return l.programs() > 1 && second.programs() > 1 })
	l.rest()
	second.rest()
	l.await("a second without a program of either", func() bool { // what earlier tests left, and goes only now, may cause one
		before := [2]int{l.programs(), second.programs()}
		time.Sleep(time.Second)
		return before == [2]int{l.programs(), second.programs()}
	})
	runNFT(t, "flush ruleset")
	l.awaitJudged(webAddr, true)
}

// TestPolicyOff removes what an earlier run made.
func TestPolicyOff(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	l.stop()
	l.start(func(o *Options) { o.NetworkPolicy.Off = true })
	l.await("nothing", func() bool {
		_, err := os.Stat(filepath.Join(l.dir, "node", "policy"))
		return !strings.Contains(l.table(), "policy_") && os.IsNotExist(err)
	})
	l.api.say(func(s *apiServer) {
		if s.kinds.of(policies.Pods).sent > 0 && s.kinds.of(policies.Pods).watches > 1 {
			t.Error("pods are followed")
		}
	})
}

// TestPolicyLog starts an agent that logs what policies deny, and then one that does not.
func TestPolicyLog(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	const rule = `limit rate 10/second burst 10 packets log prefix "patchbay: shop/web-0 is isolated, ingress, by shop/closed" group 7`
	for _, group := range []uint16{7, 0} {
		l.start(func(o *Options) { o.NetworkPolicy.LogGroup = group })
		l.await(fmt.Sprint("rules for group ", group), func() bool { return l.judged(webAddr) && strings.Contains(l.table(), rule) == (group == 7) })
		l.stop()
	}
}
