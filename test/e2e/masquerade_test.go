// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The outside host of the masquerade is the router between the nodes. It is no node, and has
// routes to the pods, as a network behind a VPN.
var outsideHost = []string{"10.99.0.254", "fd00:99::fe"}

const outsidePort = 18091

// proveMasquerade checks with which source an outside host sees the packets of pods of two nodes,
// and that the ConfigMap and the annotation of the namespace change it for pods that run.
func (k *cluster) proveMasquerade(one, far string) {
	k.Helper()
	defer k.took("masquerade")()
	k.do("routes", "fabric")
	serve(k.T, "kl-fabric", outsidePort)
	n1, n2 := k.nodeAddrs("n1"), k.nodeAddrs("n2")
	pod1, pod2 := k.addrs(one), k.addrs(far)
	k.leavesAs("without a ConfigMap", one, n1[0], n1[1])
	k.leavesAs("without a ConfigMap", far, n2[0], n2[1])

	k.egressAddress("n1", "192.0.2.21", "2001:db8::21")
	k.egressAddress("n2", "192.0.2.22", "2001:db8::22")
	k.kubectl("annotate", "namespace", "default", "patchbay.net/egress=192.0.2.21, 192.0.2.22, 2001:db8::21, 2001:db8::22")
	k.leavesAs("with an egress address", one, "192.0.2.21", "2001:db8::21")
	k.leavesAs("with an egress address", far, "192.0.2.22", "2001:db8::22")

	k.masqueradeConfig("nonMasqueradeCIDRs: [" + outsideHost[1] + "/128]")
	k.leavesAs("exempt in IPv6", one, "192.0.2.21", pod1[1])
	k.leavesAs("exempt in IPv6", far, "192.0.2.22", pod2[1])
	k.kubectl("annotate", "namespace", "default", "patchbay.net/egress-")
	k.leavesAs("without an egress address", one, n1[0], pod1[1])
	k.leavesAs("without an egress address", far, n2[0], pod2[1])

	k.masqueradeConfig("nonMasqueradeCIDRs: [" + outsideHost[0] + "/32]")
	k.leavesAs("exempt in IPv4", one, pod1[0], n1[1])
	k.leavesAs("exempt in IPv4", far, pod2[0], n2[1])
}

// leavesAs waits until the outside host sees a pod with an address of each family.
func (k *cluster) leavesAs(how, pod string, want ...string) {
	k.Helper()
	for i, outside := range outsideHost {
		eventually(k, fmt.Sprintf("%s, pod %s leaves as %s", how, pod, want[i]), func() error {
			out, err := exec.Command(k.script, "kubectl", "exec", pod, "--", "/probe", "who", "tcp", hostPort(outside, outsidePort)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if seen, err := netip.ParseAddrPort(strings.TrimSpace(string(out))); err != nil || seen.Addr() != netip.MustParseAddr(want[i]) {
				return fmt.Errorf("%s sees %s (%w)", outside, out, err)
			}
			return nil
		})
	}
}

// egressAddress gives a node two more addresses, and the outside host the routes to them.
func (k *cluster) egressAddress(node string, addrs ...string) {
	k.Helper()
	for i, a := range addrs {
		k.node(node, "ip", "addr", "add", a, "dev", "lo")
		run(k.T, "ip", "-n", "kl-fabric", "route", "add", a, "via", k.nodeAddrs(node)[i])
	}
}

// masqueradeConfig writes the ConfigMap. The kubelet would pass it to the agents within a minute;
// a change of the agents' pods makes it look at once.
func (k *cluster) masqueradeConfig(text string) {
	k.Helper()
	k.changes++
	k.apply(object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "patchbay-masquerade", "namespace": "kube-system"},
		"data": object{"config": text},
	})
	k.kubectl("annotate", "--overwrite", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=patchbay", "look="+strconv.Itoa(k.changes))
}

// took logs how long a step took.
func (k *cluster) took(step string) func() {
	began := time.Now()
	return func() { k.Logf("%s: %v", step, time.Since(began).Round(time.Millisecond)) }
}
