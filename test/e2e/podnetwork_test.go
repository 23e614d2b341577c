// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// hostServer is the port of a server on a node itself.
const hostServer = 18090

// TestPodNetwork has nodes of containerd 1.6 and 2.2 in one cluster. The network is the one that
// `patchbay install --kubernetes` writes, with static routes between the nodes. The test checks
// what Services, host ports and hosts see of pods, and what containerd 2 asks of the plugins.
func TestPodNetwork(t *testing.T) {
	if !ours() {
		t.Log("the template is of our build")
		return
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "3", "containerd2=n2,n3")
		defer k.saveLogs()
		k.podNetwork("n1", "n2", "n3")
		k.pod("one", "n1", 18080)
		k.pod("two", "n1", 0)
		k.pod("far", "n2", 18080)
		k.service("one")
		k.ready(2*time.Minute, "pods", "--all")

		for _, mode := range []string{"nftables", "iptables"} {
			k.do("proxy", mode)
			k.proveService("kube-proxy in mode "+mode, "one", "two", "far")
		}
		k.proveHostPort("one", "n1")
		k.proveHostPort("far", "n2")
		k.proveHosts()
		k.proveUserNamespace("n2", "one", "far")
		for _, node := range []string{"n1", "n2"} {
			k.proveInstalledOnce(node)
		}
		k.proveVersion("n1", "1.0.0")
		k.proveVersion("n2", "1.1.0")
		k.proveStatus("n3")
		k.proveSandboxesKnown("n1", "one", "two")
		k.proveSandboxesKnown("n2", "far")
		k.proveForgotten("n1", "one", "two")
		k.proveEmptyResult("n1", "one", "two")
	})
}

// TestPodNetworkIPv6 has a cluster without IPv4. It runs if PATCHBAY_NIGHTLY is 1, as `make
// nightly` sets it.
func TestPodNetworkIPv6(t *testing.T) {
	if !ours() || os.Getenv("PATCHBAY_NIGHTLY") != "1" {
		t.Log("runs in make nightly, with our build")
		return
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "3", "ipv6", "routed", "containerd2=n2")
		defer k.saveLogs()
		k.podNetwork("n1", "n2", "n3")
		k.pod("one", "n1", 18080)
		k.pod("two", "n1", 0)
		k.pod("far", "n2", 18080)
		k.service("one")
		k.ready(2*time.Minute, "pods", "--all")
		k.do("proxy", "nftables")
		k.proveService("IPv6 only", "one", "two", "far")
		k.proveHostPort("one", "n1")
		k.proveHostPort("far", "n2")
		k.proveHosts()
	})
}

// podNetwork gives nodes the network of `patchbay install --kubernetes`, and routes.
func (k *cluster) podNetwork(nodes ...string) {
	k.Helper()
	for _, node := range nodes {
		k.importProbe(node)
		k.installTemplate(node)
	}
	k.do("routes")
	k.ready(3*time.Minute, "nodes", "--all")
}

// service makes a Service of both families on port 80, in front of a pod.
func (k *cluster) service(pod string) {
	k.Helper()
	k.serviceWith(pod, object{"app": pod}, 0, nil)
}

// serviceWith makes a Service as service does, in front of the pods with these labels, with further fields of its spec. If nodePort is not
// 0, both protocols have this node port.
func (k *cluster) serviceWith(name string, selector object, nodePort int, further object) {
	k.Helper()
	port := func(protocol string) object {
		p := object{"name": strings.ToLower(protocol), "protocol": protocol, "port": 80, "targetPort": probePort}
		if nodePort != 0 {
			p["nodePort"] = nodePort
		}
		return p
	}
	spec := object{"selector": selector, "ipFamilyPolicy": "PreferDualStack", "ports": []object{port("TCP"), port("UDP")}}
	maps.Copy(spec, further)
	k.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name}, "spec": spec})
}

// clusterIPs returns the addresses of a Service.
func (k *cluster) clusterIPs(service string) []string {
	k.Helper()
	return strings.Fields(k.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIPs[*]}"))
}

// proveService asks the Service of a pod from other pods, whose addresses the pod must see. It
// also asks from the pod itself, which must reach itself through the Service.
func (k *cluster) proveService(how, pod string, others ...string) {
	k.Helper()
	for i, vip := range k.clusterIPs(pod) {
		for _, network := range []string{"tcp", "udp"} {
			k.ask(how+", hairpin", pod, network, hostPort(vip, 80))
			for _, other := range others {
				seen := k.ask(how, other, network, hostPort(vip, 80))
				k.seenAs(fmt.Sprintf("%s: %s by %s over %s", how, pod, other, network), seen, k.addrs(other)[i])
			}
		}
	}
}

// ask asks a server from a pod until the server answers, because the rules of a Service come
// later than the Service.
func (k *cluster) ask(how, pod, network, addr string) (seen string) {
	k.Helper()
	eventually(k, fmt.Sprintf("%s: %s asks %s %s", how, pod, network, addr), func() error {
		out, err := exec.Command(k.script, "kubectl", "exec", pod, "--", "/probe", "who", network, addr).CombinedOutput()
		if seen = strings.TrimSpace(string(out)); err != nil {
			return fmt.Errorf("%w: %s", err, seen)
		}
		return nil
	})
	return seen
}

// proveHostPort asks the host port of a pod at its node's own addresses, from the pod.
func (k *cluster) proveHostPort(pod, node string) {
	k.Helper()
	for _, addr := range k.nodeAddrs(node) {
		k.ask("hairpin through a host port", pod, "tcp", hostPort(addr, 18080))
	}
}

// proveHosts checks that a node reaches its own pods and pods of another node, and that pods reach
// nodes. A pod's own node sees the pod's address. Another node is outside of the pods' network, so
// it sees the address of the pod's node.
func (k *cluster) proveHosts() {
	k.Helper()
	serve(k.T, "kl-n1", hostServer)
	one, far := k.addrs("one"), k.addrs("far")
	n1, n2, n3 := k.nodeAddrs("n1"), k.nodeAddrs("n2"), k.nodeAddrs("n3")
	for i := range one {
		k.node("n1", probeProgram(), "who", "tcp", hostPort(one[i], probePort))
		k.seenAs("pod one by a host", k.node("n3", probeProgram(), "who", "tcp", hostPort(one[i], probePort)), n3[i])
		k.seenAs("pod far by a host", k.node("n3", probeProgram(), "who", "udp", hostPort(far[i], probePort)), n3[i])
		k.seenAs("its host by pod one", k.ask("", "one", "tcp", hostPort(n1[i], hostServer)), one[i])
		k.seenAs("a host by pod far", k.ask("", "far", "tcp", hostPort(n1[i], hostServer)), n2[i])
		k.seenAs("pod far by pod one", k.ask("", "one", "tcp", hostPort(far[i], probePort)), one[i])
	}
}

// proveInstalledOnce checks that a second install does not write the same configuration again.
// containerd would read it again, and while an ADD runs, all other pods would wait.
func (k *cluster) proveInstalledOnce(node string) {
	k.Helper()
	files := func() string {
		return k.node(node, "sh", "-c", "stat -c '%n %i %y' /etc/cni/net.d /etc/cni/net.d/* /etc/cni/*.template")
	}
	before := files()
	k.installTemplate(node)
	if after := files(); after != before {
		k.Errorf("%s: installing again changed\n%s\nto\n%s", node, before, after)
	}
}

// proveVersion checks that a runtime's plugins use the newest version that both the runtime and
// the network know.
func (k *cluster) proveVersion(node, want string) {
	k.Helper()
	const pattern = `'"result":{"cniVersion":"[^"]*"'`
	got := k.node(node, "sh", "-c", "grep -ho "+pattern+" /var/lib/cni/results/pods-*-eth0 | sort -u")
	if got != `"result":{"cniVersion":"`+want+`"` {
		k.Errorf("%s has results %s, want version %s", node, got, want)
	}
}

// proveStatus checks that containerd 2 asks for STATUS, that the node stays Ready, and that an
// answer costs little more than the program's start.
func (k *cluster) proveStatus(node string) {
	k.Helper()
	k.node(node, "bash", "-c", `set -e
		mkdir /opt/cni/real
		mv /opt/cni/bin/patchbay /opt/cni/real/
		printf '#!/bin/bash\necho $CNI_COMMAND >>/run/cni-calls\nexec -a "$0" /opt/cni/real/patchbay\n' >/opt/cni/bin/.new
		chmod 755 /opt/cni/bin/.new
		mv /opt/cni/bin/.new /opt/cni/bin/patchbay`)
	eventually(k, "containerd asks for STATUS", func() error {
		if calls := k.node(node, "sh", "-c", "cat /run/cni-calls 2>/dev/null || true"); strings.Count(calls, "STATUS") < 3 {
			return fmt.Errorf("calls: %q", calls)
		}
		return nil
	})
	k.ready(time.Minute, "node", node)
	status, version := k.cpu(node, "STATUS"), k.cpu(node, "VERSION")
	k.Logf("CPU of STATUS: %v, of VERSION: %v", status, version)
	if status > 3*version { // a busy machine makes both slower alike
		k.Errorf("STATUS costs %v of CPU, and the program's start, VERSION, only %v", status, version)
	}
}

// cpu returns the least CPU time of some calls, because the machine is busy.
func (k *cluster) cpu(node, verb string) time.Duration {
	k.Helper()
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	if err := json.Unmarshal([]byte(k.node(node, "cat", "/etc/cni/net.d/10-containerd-net.conflist")), &list); err != nil {
		k.Fatal(err)
	}
	conf := list.Plugins[0]
	conf["name"], conf["cniVersion"] = list.Name, "1.1.0"
	stdin, err := json.Marshal(conf)
	if err != nil {
		k.Fatal(err)
	}
	least := time.Hour
	for range 50 {
		cmd := exec.Command("nsenter", "-t", k.pid(node+"-holder"), "-m", "-u", "-n", "--", "/opt/cni/real/patchbay")
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_PATH=/opt/cni/bin", "PATH=/usr/bin:/bin"}
		cmd.Stdin = strings.NewReader(string(stdin))
		if out, err := cmd.CombinedOutput(); err != nil {
			k.Fatalf("%s: %v\n%s", verb, err, out)
		}
		least = min(least, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	return least
}
