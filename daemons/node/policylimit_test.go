// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// The limit of the DaemonSet suffices for what docs/kubernetes.md promises: fifty selectors, each of which matches 20,000 pods
// with two addresses. The kernel's sets count twice, because new policies are in the kernel before the former ones are
// removed. The agent runs with the limit. PATCHBAY_POLICY_MEMORY is the number of pods.
func TestPolicyLimit(t *testing.T) {
	const selectors, promised = 50, 20000
	group, limit := nettest.MemoryCgroup(t), documentedLimit(t)
	uplink(t)
	api := newAPIServer(t)
	pods := draw.Number(t, "PATCHBAY_POLICY_MEMORY", 2000, 8000)
	many(api, pods)
	p := newProcess(t, api)
	t.Cleanup(func() { p.clean() })
	p.start()
	p.awaitPrograms(1)
	group.Limit(t, limit)
	group.Take(t, p.cmd.Process.Pid)
	before, most := podSets(t), p.mostAnonymous()
	for i := range selectors {
		api.kinds.of(policies.NetworkPolicies).put(widePolicy(i))
	}
	for end := time.Now().Add(4 * patience); podSets(t) < before+2*selectors; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the kernel has %d sets of pods, want %d", podSets(t), before+2*selectors)
		}
	}
	all, kernel := group.Used(t)
	agent := most()<<10 + p.memory("RssFile")<<10
	t.Logf("%d pods: the cgroup has %d MB, of which the kernel has %d MB; the agent had %d MB; the limit is %d MB", pods, all>>20, kernel>>20, agent>>20, limit>>20)
	// The promise is about the sets' elements. Without them the kernel would not charge sets, and the test would see
	// nothing.
	if elements := selectors * 2 * pods; kernel < 32*elements {
		t.Errorf("%d bytes for %d elements: the kernel does not charge them, or they are not there", kernel, elements)
	}
	if need := agent + 2*kernel*promised/pods; need > limit {
		t.Errorf("%d pods and %d selectors need %d MB, the limit is %d MB", promised, selectors, need>>20, limit>>20)
	}
	p.stop(unix.SIGTERM)
}

// widePolicy has a selector that matches all pods.
func widePolicy(i int) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"team-0","name":"wide%d"},"spec":{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"none","operator":"NotIn","values":["%d"]}]}}]}]}}`, i, i)
}

// documentedLimit returns the limit of the DaemonSet in bytes.
func documentedLimit(t *testing.T) (bytes int) {
	t.Helper()
	text, err := os.ReadFile("../dist/kubernetes/patchbay.yaml")
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "limits:")
	_, rest, _ = strings.Cut(rest, "memory: ")
	if _, err := fmt.Sscanf(rest, "%dMi", &bytes); err != nil {
		t.Fatalf("no limit in the manifest: %v", err)
	}
	return bytes << 20
}

// podSets counts the sets of selectors in the kernel.
func podSets(t *testing.T) (n int) {
	t.Helper()
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // nothing was written
	sets, _, err := fw.Policies()
	must(t, err)
	for _, name := range sets {
		if strings.HasPrefix(name, "policy_pods") {
			n++
		}
	}
	return n
}
