// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/test/reftest"
)

// agentImage is the image that the manifest names.
const agentImage = "ghcr.io/patchbay-net/patchbay:latest"

// TestDaemonSet installs the network as a user does: the image, then the manifest. Nodes
// become ready, pods reach each other, and still do after a rolling update of the agent.
func TestDaemonSet(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	if os.Getenv(insideEnv) == "" {
		buildAgentImage(t)
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		k.do("proxy", "nftables") // the agent reaches the API server through its Service
		k.do("images", agentArchive())
		k.applyManifest()
		for _, node := range []string{"n1", "n2"} {
			k.importProbe(node)
		}
		k.ready(3*time.Minute, "nodes", "--all")
		k.pod("one", "n1", 0)
		k.pod("far", "n2", 0)
		k.ready(2*time.Minute, "pods", "--all")
		k.proveMesh("one", "far")

		k.kubectl("rollout", "restart", "-n", "kube-system", "daemonset/patchbay")
		k.kubectl("rollout", "status", "-n", "kube-system", "daemonset/patchbay", "--timeout=3m")
		k.proveMesh("one", "far")
		k.noAgentEvents()
	})
}

func agentArchive() string { return os.Getenv(workEnv) + "/agent.tar" }

// buildAgentImage makes the image of the programs under test.
func buildAgentImage(t *testing.T) {
	t.Helper()
	if err := goBuild(patchbayd(), "../../cmd/patchbayd"); err != nil {
		t.Fatal(err)
	}
	run(t, "go", "run", "../../dist/image", agentArchive(), agentImage, patchbay(), patchbayd())
}

// applyManifest applies dist/kubernetes/patchbay.yaml with both families of the lab.
func (k *cluster) applyManifest() {
	k.Helper()
	root, err := reftest.Root()
	if err != nil {
		k.Fatal(err)
	}
	raw, err := os.ReadFile(root + "/dist/kubernetes/patchbay.yaml")
	if err != nil {
		k.Fatal(err)
	}
	const ipv4 = "            - --cluster-cidr=10.244.0.0/16\n"
	manifest := strings.Replace(string(raw), ipv4, ipv4+"            - --cluster-cidr=fd00:244::/56\n", 1)
	file := k.dir + "/patchbay.yaml"
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		k.Fatal(err)
	}
	k.kubectl("apply", "-f", file)
	k.kubectl("rollout", "status", "-n", "kube-system", "daemonset/patchbay", "--timeout=3m")
}

// noAgentEvents fails if the agent complains of a node.
func (k *cluster) noAgentEvents() {
	k.Helper()
	const show = `{range .items[?(@.source.component=="patchbayd")]}{.reason}: {.message}{"\n"}{end}`
	if out := k.kubectl("get", "events", "-A", "-o", "jsonpath="+show); out != "" {
		k.Errorf("Events of the agent:\n%s", out)
	}
}
