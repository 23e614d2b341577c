// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// These are the networks whose pods are timed, each on a separate node. All have IPv4 only: with
// IPv6 the reference's ptp also waits for the duplicate address detection.
var podRates = []struct {
	node, title, plugins string

	part float64 // of this network's CPU time: ours may take as much
}{
	{"n1", "Patchbay: install --kubernetes", "", 1},
	{"n2", "reference: ptp, portmap, bandwidth", `{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},{"type":"bandwidth","capabilities":{"bandwidth":true}}`, 0.5},
	{"n3", "reference: bridge, portmap, as flannel", `{"type":"bridge","bridge":"cni0","mtu":1450,"isGateway":true,"isDefaultGateway":true,"hairpinMode":true,
"ipam":{"type":"host-local","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"10.244.0.0/16"}]}},
{"type":"portmap","capabilities":{"portMappings":true}}`, 1}, // it neither masquerades nor limits
}

// podRate has the times that the pods of one network took.
type podRate struct {
	seconds []float64     // from the creation of the pods until the last one is Ready
	cpu     time.Duration // CPU time of the plugins for one round of ADD and DEL
}

// TestPodRate starts 100 pods on one node, with our plugins and with the reference's, and prints
// how long they took until Ready. It runs only if PATCHBAY_NIGHTLY is 1, as in `make nightly`,
// because the numbers need a quiet machine.
func TestPodRate(t *testing.T) {
	if !ours() || os.Getenv("PATCHBAY_NIGHTLY") != "1" {
		t.Log("runs in make nightly, with our build")
		return
	}
	meter := os.Getenv(workEnv) + "/meter"
	if os.Getenv(insideEnv) == "" {
		if err := goBuild(meter, "./testdata/meter"); err != nil {
			t.Fatal(err)
		}
	}
	const pods, rounds = 100, 2
	onNode(t, func(t *testing.T) {
		k := newCluster(t, fmt.Sprint(len(podRates)))
		defer k.saveLogs()
		for _, r := range podRates {
			k.podRateNetwork(r.node, r.plugins)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		rates := make([]podRate, len(podRates))
		for round := range rounds {
			for i := range podRates {
				i = (i + round) % len(podRates)
				rates[i].seconds = append(rates[i].seconds, k.startPods(podRates[i].node, pods).Seconds())
				k.endPods(podRates[i].node)
			}
		}
		for i, r := range podRates {
			k.node(r.node, "sh", "-c", "mkdir /opt/cni/real && cp -a /opt/cni/bin/. /opt/cni/real/ && for f in /opt/cni/bin/*; do rm $f; cp "+meter+" $f; done")
			k.startPods(r.node, pods)
			k.endPods(r.node)
			rates[i].cpu = k.metered(r.node)
		}
		for i, r := range podRates {
			k.Logf("%s: %d pods Ready in %.1f s, %.2f pods/s; CPU of the plugins, ADD and DEL: %.1f ms a pod",
				r.title, pods, rates[i].seconds, float64(pods*rounds)/sum(rates[i].seconds), rates[i].cpu.Seconds()*1000/pods)
			if limit := r.part * rates[i].cpu.Seconds(); rates[0].cpu.Seconds() > limit {
				k.Errorf("our plugins take %v of CPU, more than %.1f of %v, which %s takes", rates[0].cpu, r.part, rates[i].cpu, r.title)
			}
		}
	})
}

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// podRateNetwork gives a node one of the networks. Ours is the one that `patchbay install` writes.
func (k *cluster) podRateNetwork(node, plugins string) {
	k.Helper()
	k.importProbe(node)
	cidr := k.podCIDRs(node)[0]
	if plugins == "" {
		k.node(node, patchbay(), "install", "--kubernetes", "--cluster-cidr=10.244.0.0/16", "--pod-cidr="+cidr, "/opt/cni/bin")
		return
	}
	k.node(node, "sh", "-c", "cp -a "+reference()+"/. /opt/cni/bin/")
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"pods","plugins":[%s]}`, fmt.Sprintf(plugins, cidr))
	file := filepath.Join(k.dir, node+".conflist")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		k.Fatal(err)
	}
	k.node(node, "sh", "-c", "cp "+file+" /etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-pods.conflist")
}

// startPods creates pods on a node and returns the time until all are Ready.
func (k *cluster) startPods(node string, n int) time.Duration {
	k.Helper()
	var items []object
	for i := range n {
		items = append(items, object{
			"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": fmt.Sprintf("%s-%d", node, i), "labels": object{"on": node}},
			"spec": object{
				"nodeName": node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
				"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never"}},
			},
		})
	}
	raw, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		k.Fatal(err)
	}
	file := filepath.Join(k.dir, "pods.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		k.Fatal(err)
	}
	start := time.Now()
	k.kubectl("create", "-f", file)
	k.ready(10*time.Minute, "pods", "-l", "on="+node)
	return time.Since(start)
}

// endPods deletes a node's pods and waits until nothing of them is left in containerd.
func (k *cluster) endPods(node string) {
	k.Helper()
	k.kubectl("delete", "pods", "-l", "on="+node, "--wait", "--timeout=10m")
	for range 600 {
		if k.node(node, "ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "ls", "-q") == "" {
			return
		}
		time.Sleep(time.Second)
	}
	k.Fatalf("%s still has containers ten minutes after their pods were deleted", node)
}

// metered returns the CPU time that a node's meter has counted. It leaves out loopback, because
// containerd calls that for every network.
func (k *cluster) metered(node string) (total time.Duration) {
	k.Helper()
	for line := range strings.Lines(k.node(node, "cat", "/run/meter")) {
		var name, verb string
		var cpu time.Duration
		if _, err := fmt.Sscan(line, &name, &verb, &cpu); err != nil {
			k.Fatalf("%s: %v", line, err)
		}
		if name != "loopback" && (verb == "ADD" || verb == "DEL") {
			total += cpu
		}
	}
	return total
}
