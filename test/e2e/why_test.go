// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestWhy compares what `patchbay why` says on both nodes with what connections between pods do, and
// asks about Services in each mode of kube-proxy.
func TestWhy(t *testing.T) {
	if !ours() || os.Getenv("PATCHBAY_NIGHTLY") != "1" {
		t.Log("runs in make nightly, with our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		k.agentAccount()
		for _, node := range []string{"n1", "n2"} {
			k.importProbe(node)
			k.startAgent(node)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		home := map[string]string{"web": "n1", "db": "n1", "far": "n2"}
		for pod, node := range home {
			k.pod(pod, node, 0)
		}
		k.service("db")
		k.ready(2*time.Minute, "pods", "--all")
		k.compareWhy(home, "without policies")

		peers := func(app string) []object {
			return []object{{"podSelector": object{"matchLabels": object{"app": app}}}}
		}
		k.networkPolicy("db", "db", object{"ingress": []object{{"from": peers("web"), "ports": []object{{"port": probePort}}}}})
		k.networkPolicy("far", "far", object{"policyTypes": []string{"Egress"}, "egress": []object{{"to": peers("web"), "ports": []object{{"port": probePort, "protocol": "UDP"}}}}})
		for node, question := range map[string][]string{"n1": {"world", "default/db:81"}, "n2": {"default/far", "world"}} {
			eventually(t, "the policies are in force on "+node, func() error {
				if said, code := k.why(node, question...); code != 1 {
					return errors.New(said)
				}
				return nil
			})
		}
		k.compareWhy(home, "with policies")
		for _, node := range []string{"n1", "n2"} {
			k.node(node, patchbay(), "doctor", "--check", "policies")
		}
		for _, mode := range []string{"iptables", "nftables"} {
			k.do("proxy", mode)
			k.serviceWhy(mode)
		}
	})
}

// networkPolicy makes a NetworkPolicy for the pods of an app.
func (k *cluster) networkPolicy(name, app string, spec object) {
	k.Helper()
	spec["podSelector"] = object{"matchLabels": object{"app": app}}
	k.apply(object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": object{"name": name, "namespace": "default"}, "spec": spec})
}

// why asks on a node, and returns what it says and its exit status.
func (k *cluster) why(node string, question ...string) (said string, code int) {
	k.Helper()
	args := append([]string{"node", node, patchbay(), "why"}, question...)
	out, err := exec.Command(k.script, args...).CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		code = ended.ExitCode()
	} else if err != nil {
		k.Fatal(err)
	}
	return string(out), code
}

// compareWhy asks about each pair of pods, with each protocol and each address, and connects.
func (k *cluster) compareWhy(home map[string]string, when string) {
	k.Helper()
	for from, node := range home {
		for to, other := range home {
			if from == to {
				continue
			}
			for _, network := range []string{"tcp", "udp"} {
				for i, addr := range k.addrs(to) {
					k.compareOne(when, network, from, k.addrs(from)[i], node, to, addr, other)
				}
			}
		}
	}
}

// compareOne asks on the node of each pod. It names the pod of this node by its name, and the other one by
// its address.
func (k *cluster) compareOne(when, network, from, fromAddr, node, to, toAddr, other string) {
	k.Helper()
	said, code := k.why(node, "default/"+from, fmt.Sprintf("%s/%s", hostPort(toAddr, probePort), network))
	allowed := code == 0
	if other != node {
		more, at := k.why(other, fromAddr, fmt.Sprintf("default/%s:%d/%s", to, probePort, network))
		said, allowed, code = said+more, allowed && at == 0, max(code, at)
	}
	_, err := exec.Command(k.script, "kubectl", "exec", from, "--", "/probe", "who", network, hostPort(toAddr, probePort)).CombinedOutput()
	if code > 1 || (err == nil) != allowed {
		k.Errorf("%s: %s %s -> %s: connects: %v, and why says\n%s", when, network, from, toAddr, err == nil, said)
	}
}

// serviceWhy asks about the addresses of Service db, once kube-proxy has them.
func (k *cluster) serviceWhy(mode string) {
	k.Helper()
	for _, vip := range k.clusterIPs("db") {
		eventually(k, "why knows Service "+vip+" of kube-proxy "+mode, func() error {
			if said, code := k.why("n1", "default/web", hostPort(vip, 80)); code != 2 || !strings.Contains(said, "is the address of a Service") {
				return fmt.Errorf("status %d: %s", code, said)
			}
			return nil
		})
	}
}
