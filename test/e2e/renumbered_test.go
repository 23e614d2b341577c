// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// proveRenumbered deletes a Node whose pod runs, and lets its kubelet register it again. Then the
// Node has other podCIDRs. The pod keeps its network, on its node and towards others. A fresh pod
// gets addresses of the new podCIDRs. The agent names the old pod until it is gone.
func (k *cluster) proveRenumbered(node, pod, fresh string, others ...string) {
	k.Helper()
	defer k.took("other podCIDRs")()
	now := k.renumber(node)
	k.pod(fresh, node, 0)
	k.ready(time.Minute, "pod", fresh)
	for i, a := range k.addrs(fresh) {
		if !netip.MustParsePrefix(now[i]).Contains(netip.MustParseAddr(a)) {
			k.Errorf("the new pod has %s, not an address of %s", a, now[i])
		}
	}
	for _, other := range append(others, fresh) {
		k.proveMesh(pod, other)
	}
	says := fmt.Sprintf("PodCIDRChanged: pods with addresses of podCIDRs that Node %s no longer has: 1, default/%s (", node, pod)
	eventually(k, "an Event of the old pod", func() error {
		if out := k.agentEvents(); !strings.Contains(out, says) {
			return fmt.Errorf("Events:\n%s", out)
		}
		return nil
	})
	k.doctorSays(node, says, true)
	k.kubectl("delete", "pod", pod)
	k.kubectl("annotate", "node", node, "patchbay.net/look=now") // the agent looks at once, not within a minute
	k.doctorSays(node, "PodCIDRChanged", false)
}

// renumber deletes a Node and starts its kubelet again. It returns the new podCIDRs, which are in
// the network's file.
func (k *cluster) renumber(node string) (now []string) {
	k.Helper()
	before := k.podCIDRs(node)
	k.kubectl("delete", "node", node)
	run(k.T, "kill", "-KILL", k.pid(node+"-kubelet"))
	k.do("program", node, "kubelet")
	eventually(k, node+" has other podCIDRs", func() error {
		out, err := exec.Command(k.script, "kubectl", "get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}").CombinedOutput()
		if now = strings.Fields(string(out)); err != nil || len(now) != 2 || slices.Contains(now, before[0]) {
			return fmt.Errorf("has %s (%w), had %v", out, err, before)
		}
		if out, err := exec.Command(k.script, "node", node, "grep", now[0], "/etc/cni/net.d/10-pods.conflist").CombinedOutput(); err != nil {
			return fmt.Errorf("the network's file is without %s: %s (%w)", now[0], out, err)
		}
		return nil
	})
	return now
}

// doctorSays waits until doctor on a node says a text, or no longer says it.
func (k *cluster) doctorSays(node, text string, want bool) {
	k.Helper()
	eventually(k, fmt.Sprintf("doctor on %s says %q: %v", node, text, want), func() error {
		out, err := exec.Command(k.script, "node", node, patchbay(), "doctor").CombinedOutput()
		if strings.Contains(string(out), text) != want {
			return fmt.Errorf("%s (%w)", out, err)
		}
		return nil
	})
}
