// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// These are the numbers of TestChurn's pods without and with a bandwidth limit. In addition, each
// node has one pod with a host port.
const (
	plainPods  = 160
	shapedPods = 40
)

// programs are the programs of a node that TestChurn kills.
var programs = []string{"agent", "kubelet", "containerd"}

// TestChurn runs 200 pods. It deletes random pods, which Kubernetes replaces, and kills random
// agents, kubelets and containerds. Halfway it switches a node off and deletes the Node; later the
// node returns. No two pods ever have the same address, and in the end nothing is left on any node.
// The test runs only if PATCHBAY_KUBE_CHURN says for how long, as in `make nightly`.
func TestChurn(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("PATCHBAY_KUBE_CHURN"))
	if !ours() || err != nil {
		t.Log("runs in make nightly, with our build: PATCHBAY_KUBE_CHURN is no time")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "3", "containerd2=n2,n3")
		defer k.saveLogs()
		c := &churn{cluster: k, nodes: []string{"n1", "n2", "n3"}, before: map[string]leak.State{}, due: map[string]time.Time{}, former: map[string][]string{}}
		k.agentAccount()
		for _, node := range c.nodes {
			k.importProbe(node)
			c.before[node] = k.state(node)
			k.startAgent(node)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		w := k.watchAddresses(c.nodes)
		c.workload()
		c.settled()
		c.run(length)
		c.settled()
		c.swept()
		c.agreed()
		w.end()
		c.emptied()
	})
}

// churn is the state of TestChurn.
type churn struct {
	*cluster
	nodes   []string
	before  map[string]leak.State
	due     map[string]time.Time // of programs that were killed: when they start again
	down    string               // the node without power
	former  map[string][]string  // podCIDRs that a node had before its Node was deleted
	kills   map[string]int
	deletes int
}

// workload makes the pods.
func (c *churn) workload() {
	limits := object{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}
	c.controller("ReplicaSet", "plain", plainPods, object{}, object{"containerPort": probePort})
	c.controller("ReplicaSet", "shaped", shapedPods, limits, object{"containerPort": probePort})
	c.controller("DaemonSet", "ports", 0, object{}, object{"containerPort": probePort, "hostPort": 18080})
}

func (c *churn) controller(kind, name string, replicas int, annotations, port object) {
	spec := object{
		"selector": object{"matchLabels": object{"app": name}},
		"template": object{
			"metadata": object{"labels": object{"app": name}, "annotations": annotations},
			"spec": object{
				"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
				"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never", "ports": []object{port}}},
			},
		},
	}
	if replicas > 0 {
		spec["replicas"] = replicas
	}
	c.apply(object{"apiVersion": "apps/v1", "kind": kind, "metadata": object{"name": name}, "spec": spec})
}

// apiPod has the properties of a pod that the test reads from the API server.
type apiPod struct {
	name, node string
	ready      bool
	addrs      []string
}

// pods lists the pods of the API server that are not being deleted.
func (c *churn) pods() (pods []apiPod) {
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
			Spec     struct{ NodeName string }
			Status   struct {
				PodIPs     []struct{ IP string }
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal([]byte(c.kubectl("get", "pods", "-o", "json")), &list); err != nil {
		c.Fatal(err)
	}
	for _, i := range list.Items {
		p := apiPod{name: i.Metadata.Name, node: i.Spec.NodeName}
		for _, ip := range i.Status.PodIPs {
			p.addrs = append(p.addrs, ip.IP)
		}
		for _, cond := range i.Status.Conditions {
			p.ready = p.ready || cond.Type == "Ready" && cond.Status == "True"
		}
		if i.Metadata.DeletionTimestamp == "" {
			pods = append(pods, p)
		}
	}
	return pods
}

// settled waits until all pods are ready.
func (c *churn) settled() {
	c.Helper()
	want, ready, began := plainPods+shapedPods+len(c.nodes), 0, time.Now()
	for time.Since(began) < 5*patience {
		ready = 0
		c.revive(time.Now())
		for _, p := range c.pods() {
			if p.ready {
				ready++
			}
		}
		if ready == want {
			c.Logf("%d pods are ready after %v", ready, time.Since(began).Round(time.Second))
			return
		}
		time.Sleep(time.Second)
	}
	c.Fatalf("%d of %d pods are ready", ready, want)
}

// run deletes and kills for a while.
func (c *churn) run(length time.Duration) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	began, off, back := time.Now(), false, false
	c.kills = map[string]int{}
	for passed := time.Duration(0); passed < length; passed = time.Since(began) {
		if !off && passed > length/2 {
			off = true
			c.lose("n3")
		}
		if !back && passed > length*3/4 {
			back = true
			c.bringBack("n3")
		}
		c.revive(time.Now())
		if random.IntN(3) == 0 {
			living := c.living()
			c.kill(living[random.IntN(len(living))], programs[random.IntN(len(programs))], random.IntN(5000))
		} else {
			c.delete(random)
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
	}
	c.revive(time.Now().Add(time.Hour))
	c.Logf("in %v: %d pods deleted, killed %v", length, c.deletes, c.kills)
}

// delete deletes some pods, in one of two ways.
func (c *churn) delete(random *rand.Rand) {
	pods := c.pods()
	args := []string{"delete", "pod", "--wait=false", "--ignore-not-found"}
	if random.IntN(4) == 0 {
		args = append(args, "--grace-period=0", "--force")
	}
	for range min(1+random.IntN(10), len(pods)) {
		args = append(args, pods[random.IntN(len(pods))].name)
		c.deletes++
	}
	c.kubectl(args...)
}

// kill kills a program of a node, which starts again after some milliseconds.
func (c *churn) kill(node, program string, after int) {
	key := node + "-" + program
	if _, dead := c.due[key]; dead {
		return
	}
	if c.signal(key, unix.SIGKILL) {
		c.kills[program]++
	}
	c.due[key] = time.Now().Add(time.Duration(after) * time.Millisecond)
}

// signal sends a program a signal, and reports whether it runs.
func (c *churn) signal(key string, s unix.Signal) bool {
	c.Helper()
	pid, err := strconv.Atoi(c.pid(key))
	if err != nil {
		c.Fatal(err)
	}
	return unix.Kill(pid, s) == nil
}

// living returns the nodes that are switched on.
func (c *churn) living() []string {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(node string) bool { return node == c.down })
}

// revive restarts the killed programs whose pause is over. It also restarts programs that ended by
// themselves, as a kubelet does without containerd.
func (c *churn) revive(now time.Time) {
	for _, node := range c.living() {
		for _, program := range programs {
			key := node + "-" + program
			if _, dead := c.due[key]; !dead && !c.signal(key, 0) {
				c.due[key] = now
			}
		}
	}
	for key, at := range c.due {
		if at.After(now) {
			continue
		}
		delete(c.due, key)
		switch node, program, _ := strings.Cut(key, "-"); program {
		case "agent":
			c.startAgent(node)
		default:
			c.do("program", node, program)
		}
	}
}

// lose switches a node off and deletes its Node. The other nodes lose their routes to it.
func (c *churn) lose(node string) {
	for key := range c.due {
		if strings.HasPrefix(key, node+"-") {
			delete(c.due, key)
		}
	}
	c.down, c.former[node] = node, c.podCIDRs(node)
	c.powerOff(node, c.pid(node+"-holder"))
	c.kubectl("delete", "node", node)
	c.revive(time.Now().Add(time.Hour))
	eventually(c, "n1 and n2 have one route to another node", func() error {
		for _, other := range []string{"n1", "n2"} {
			if routes := c.node(other, "ip", "route", "show", "proto", "113"); strings.Count(routes, "\n") != 0 || routes == "" {
				return fmt.Errorf("%s has\n%s", other, routes)
			}
		}
		return nil
	})
	c.Logf("%s is down and deleted", node)
}

// bringBack boots a node, which registers again.
func (c *churn) bringBack(node string) {
	c.wipe(node)
	c.do("boot", node)
	c.startAgent(node)
	c.down = ""
	eventually(c, node+" registers", func() error { return exec.Command(c.script, "kubectl", "get", "node", node).Run() })
	c.Logf("%s is back with %v", node, c.podCIDRs(node))
}

// swept deletes some pods, and waits for their replacements. A killed containerd forgets some
// sandboxes, and the ADDs and DELs of other pods detach them when their records are a minute old.
// Each call looks at three of a node's pods, of which there are about 70.
func (c *churn) swept() {
	time.Sleep(time.Minute)
	for range 2 {
		args := []string{"delete", "pod"}
		for n, p := range c.pods() {
			if n%3 == 0 {
				args = append(args, p.name)
			}
		}
		c.kubectl(args...)
		c.settled()
	}
}

// agreed checks each node. The reserved addresses are exactly the addresses of its pods in the API
// server, no two pods have the same address, and there is a route to each other node.
func (c *churn) agreed() {
	c.Helper()
	holder := map[string]string{}
	for _, p := range c.pods() {
		for _, addr := range p.addrs {
			if other := holder[addr]; other != "" {
				c.Errorf("pods %s and %s have the address %s", p.name, other, addr)
			}
			holder[addr] = p.name
		}
	}
	for _, node := range c.nodes {
		eventually(c, "addresses of "+node+" are its pods'", func() error { return c.reservedAre(node) })
		eventually(c, "routes of "+node, func() error { return c.routesAre(node) })
	}
}

func (c *churn) reservedAre(node string) error {
	var want []string
	for _, p := range c.pods() {
		if p.node == node {
			want = append(want, p.addrs...)
		}
	}
	slices.Sort(want)
	if got := c.reservations(node); !slices.Equal(got, want) {
		return fmt.Errorf("reserved are\n%v, pods have\n%v", got, want)
	}
	return nil
}

// routesAre: the other nodes also keep routes to the former podCIDRs of a Node that came back, because
// its pods may still have such addresses.
func (c *churn) routesAre(node string) error {
	var want []string
	for _, other := range c.nodes {
		if other != node {
			want = slices.Concat(want, c.podCIDRs(other), c.former[other])
		}
	}
	var got []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(c.node(node, "ip", family, "route", "show", "proto", "113")) {
			got = append(got, strings.Fields(line)[0])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		return fmt.Errorf("routes lead to %v, want %v", got, want)
	}
	return nil
}

// emptied deletes all pods and stops the agents. Then each node must be as it was at the start.
func (c *churn) emptied() {
	c.Helper()
	c.kubectl("delete", "replicasets,daemonsets", "--all")
	c.kubectl("delete", "pods", "--all")
	for _, node := range c.nodes {
		c.stopAgent(node, "TERM")
		eventually(c, "clean of "+node, func() error {
			if out := c.node(node, patchbayd(), "node", "clean"); strings.Contains(out, "stays") {
				return errors.New(out)
			}
			return nil
		})
		c.node(node, patchbay(), "gc", "--apply", "--grace=0s") // what libcni cached for sandboxes that containerd forgot
		c.nothingLeft(node, c.before[node])
	}
}
