// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// TestPolicyFirstPacket starts pods that fire at servers from the start of their program, and at which
// others fire from the moment of their ADD. A policy that existed before denies both. For half of
// the pods the agent is dead, and for half of these the API server, too: these are static pods. No
// packet may be answered. Pods without a policy must get and give answers, and pods that a policy
// does not select, too, once an agent runs.
//
// PATCHBAY_KUBE_FIRST is the number of pods; `make nightly` has 100.
func TestPolicyFirstPacket(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	buildAgent(t)
	pods := 24
	if text := os.Getenv("PATCHBAY_KUBE_FIRST"); text != "" {
		var err error
		if pods, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	onNode(t, func(t *testing.T) {
		f := newFirst(t)
		defer f.saveLogs()
		f.round("agent alive", pods/2, false, true)
		for _, node := range f.nodes {
			f.stopAgent(node, "KILL")
		}
		f.round("agent dead", pods/4, false, false)
		api := f.killAPI()
		f.round("agent and API server dead", pods-pods/2-pods/4, true, false)
		f.startAPI(api)
		f.proveOpens()
		for _, h := range f.hunters {
			if err := errors.Join(h.fails...); err != nil {
				t.Error(err)
			}
		}
	})
}

// first is a cluster of two nodes with a server on each.
type first struct {
	*cluster
	nodes   []string
	servers map[string]string // by node
	targets []string
	hunters []*hunter
	started int
}

// These are the kinds of pods.
const (
	inClosed  = "closed"     // the namespace's policy selects all pods
	selected  = "selected"   // the namespace's policy selects this pod by its label
	unrelated = "unselected" // the same namespace, and the policy does not select the pod
	inDefault = "open"       // the namespace has no policy
)

func newFirst(t *testing.T) *first {
	t.Helper()
	f := &first{cluster: newCluster(t, "2", "containerd2=n2"), nodes: []string{"n1", "n2"}, servers: map[string]string{}}
	f.agentAccount()
	for _, node := range f.nodes {
		f.importProbe(node)
		f.startAgent(node)
	}
	f.ready(2*time.Minute, "nodes", "--all")
	for _, node := range f.nodes {
		f.servers[node] = "server-" + node
		f.pod(f.servers[node], node, 0)
	}
	f.policies()
	f.ready(2*time.Minute, "pods", "--all")
	f.proveMesh("server-n1", "server-n2")
	f.proveClosed()
	for _, node := range f.nodes {
		for _, addr := range f.addrs(f.servers[node]) {
			f.targets = append(f.targets, "tcp/"+hostPort(addr, probePort), "udp/"+hostPort(addr, probePort))
		}
		serve(t, "kl-"+node, hostServer)
		f.targets = append(f.targets, "tcp/"+hostPort(f.nodeAddrs(node)[0], hostServer))
		f.hunters = append(f.hunters, f.hunt(node))
	}
	return f
}

// policies makes two namespaces with a policy that denies everything.
func (f *first) policies() {
	f.Helper()
	for namespace, selector := range map[string]object{"closed": {}, "picky": {"matchLabels": object{"app": selected}}} {
		f.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}})
		f.apply(object{
			"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": object{"name": "deny", "namespace": namespace},
			"spec": object{"podSelector": selector, "policyTypes": []string{"Ingress", "Egress"}},
		})
	}
}

// proveClosed waits until the agents have enforced the policies, on pods that already ran.
func (f *first) proveClosed() {
	f.Helper()
	for _, node := range f.nodes {
		f.apply(f.object("canary-"+node, node, inClosed, []string{"/probe", "serve", ":8080"}))
		f.ready(2*time.Minute, "pod", "-n", "closed", "canary-"+node)
		addr := strings.Fields(f.kubectl("get", "pod", "-n", "closed", "canary-"+node, "-o", "jsonpath={.status.podIPs[*].ip}"))[0]
		ns := f.podNS(f.servers["n1"])
		eventually(f, "the policy of "+node+" is in force", func() error {
			fired, err := f.fireFrom(ns, 200*time.Millisecond, "tcp/"+hostPort(addr, probePort))
			if err == nil && (fired[0].Sent == 0 || fired[0].Answers > 0) {
				err = fmt.Errorf("it answers: %+v", fired[0])
			}
			return err
		})
	}
}

// namespaceOf returns the namespace of a kind of pods.
func namespaceOf(kind string) string {
	return map[string]string{inClosed: "closed", selected: "picky", unrelated: "picky", inDefault: "default"}[kind]
}

// object is a pod that runs a command, with the directory for results.
func (f *first) object(name, node, kind string, command []string) object {
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "namespace": namespaceOf(kind), "labels": object{"app": kind, "firing": "yes"}},
		"spec": object{
			"nodeName": node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "restartPolicy": "Never",
			"enableServiceLinks": false,
			"volumes":            []object{{"name": "out", "hostPath": object{"path": f.out(), "type": "Directory"}}},
			"containers": []object{{
				"name": "probe", "image": probeImage, "imagePullPolicy": "Never", "command": command,
				"volumeMounts": []object{{"name": "out", "mountPath": "/out"}},
			}},
		},
	}
}

// out is the directory for results.
func (f *first) out() string {
	dir := filepath.Join(f.dir, "first")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	return dir
}

// fired is a pod that has ended, with what it wrote.
type fired struct {
	name, kind string
	probe.Life
}

// round starts pods, some at a time, and checks who was answered. Static pods need no API server.
func (f *first) round(when string, pods int, static, agent bool) {
	f.Helper()
	const atOnce = 20
	began := time.Now()
	answers, hunted, opened := map[string]int{}, map[string]int{}, []time.Duration{}
	for done := 0; done < pods; done += atOnce {
		for _, p := range f.batch(min(atOnce, pods-done), static) {
			out, in, soonest := f.judge(p)
			answers[p.kind] += out
			hunted[p.kind] += in
			mayAnswer := p.kind == inDefault || p.kind == unrelated && agent
			if mayAnswer {
				opened = append(opened, soonest)
			}
			if got := out+in > 0; got != mayAnswer {
				f.Errorf("%s: pod %s (%s) got %d answers and gave %d: %+v", when, p.name, p.kind, out, in, p.Life)
			}
		}
	}
	f.Logf("%s: %d pods with a policy in %v; answers they got %d, gave %d; others got %d, gave %d, the first one after %v (longest)", when, pods,
		time.Since(began).Round(time.Second), answers[inClosed]+answers[selected], hunted[inClosed]+hunted[selected],
		answers[inDefault]+answers[unrelated], hunted[inDefault]+hunted[unrelated], longest(opened))
}

func longest(list []time.Duration) (most time.Duration) {
	for _, d := range list {
		most = max(most, d)
	}
	return most
}

// judge counts the answers that a pod got, and those that it gave to hunters.
func (f *first) judge(p fired) (got, gave int, soonest time.Duration) {
	f.Helper()
	for _, r := range p.Fired {
		if r.Sent == 0 {
			f.Errorf("pod %s sent nothing to %s", p.name, r.Target)
		}
		if got += r.Answers; r.Answers > 0 && (soonest == 0 || r.First < soonest) {
			soonest = r.First
		}
	}
	if len(p.Fired) != len(f.targets) || len(p.Addrs) != 2 {
		f.Errorf("pod %s fired at %d of %d targets, from %v", p.name, len(p.Fired), len(f.targets), p.Addrs)
	}
	for _, h := range f.hunters {
		for _, addr := range p.Addrs {
			hunted, since := h.of(addr, p.Began)
			if len(hunted) == 0 {
				f.Errorf("nobody on %s fired at %s of pod %s", h.node, addr, p.name)
			}
			for _, r := range hunted {
				if since.Add(r.Last).Before(p.Began) {
					continue // the network namespace answered during the ADD, and no program
				}
				if gave += r.Answers; r.Answers > 0 && p.kind != inDefault && p.kind != unrelated {
					f.Logf("%s (%s): %v after its ADD, from %s: %+v", p.name, p.kind, p.Began.Sub(since), h.node, r)
				}
			}
		}
	}
	return got, gave, soonest
}

// batch runs pods until all have written their results: pods that policies deny, and for every five
// of them two others.
func (f *first) batch(n int, static bool) (list []fired) {
	f.Helper()
	kinds := map[string]string{}
	for i := range n {
		f.start(kinds, []string{inClosed, selected}[i%2], static)
		if i%5 == 4 || n < 5 && i == 0 {
			f.start(kinds, unrelated, static)
			f.start(kinds, inDefault, static)
		}
	}
	left := len(kinds)
	eventually(f, "the pods end", func() error {
		files, err := filepath.Glob(filepath.Join(f.out(), "*.json"))
		for _, file := range files {
			var p fired
			text, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(text, &p.Life)
			}
			if err != nil {
				return err
			}
			p.name = strings.TrimSuffix(filepath.Base(file), ".json")
			p.kind = kinds[p.name]
			list = append(list, p)
			if err := os.Remove(file); err != nil {
				return err
			}
		}
		if left = len(kinds) - len(list); left > 0 && err == nil {
			err = fmt.Errorf("%d pods have not ended", left)
		}
		return err
	})
	time.Sleep(huntFor) // the hunters' last answers
	if static {
		for _, node := range f.nodes {
			run(f.T, "sh", "-c", "rm -f "+filepath.Join(f.dir, "nodes", node, "static")+"/fire-*.json")
		}
	} else {
		f.kubectl("delete", "pods", "-A", "-l", "firing=yes", "--field-selector=status.phase!=Running", "--wait=false")
	}
	return list
}

// start starts a pod that fires.
func (f *first) start(kinds map[string]string, kind string, static bool) {
	f.Helper()
	f.started++
	node := f.nodes[f.started%len(f.nodes)]
	name := fmt.Sprintf("fire-%d", f.started)
	kinds[name] = kind
	pod := f.object(name, node, kind, append([]string{"/probe", "first", "/out/" + name + ".json", "1500ms"}, f.targets...))
	if !static {
		f.apply(pod)
		return
	}
	text, err := json.Marshal(pod)
	if err != nil {
		f.Fatal(err)
	}
	f.write(filepath.Join(f.dir, "nodes", node, "static", name+".json"), string(text))
}
