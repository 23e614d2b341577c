// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// agentImage is the image that the manifest names, and nextImage is the image of another build.
const (
	agentImage = "ghcr.io/patchbay-net/patchbay:latest"
	nextImage  = "ghcr.io/patchbay-net/patchbay:next"
)

// TestDaemonSet installs the network as a user does: the image, then the manifest. Nodes become
// ready, pods reach each other, and no packet between them is lost while agents are replaced by
// agents of another build. In make nightly, it also tests two things that take 80 seconds. The ConfigMap
// and the annotation for the masquerade apply to running pods. The API server gives the agents the
// rights of the chart and no others.
func TestDaemonSet(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	if os.Getenv(insideEnv) == "" {
		buildAgentImages(t)
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		k.do("proxy", "nftables") // the agent reaches the API server through its Service
		k.do("images", agentArchive(agentImage), agentArchive(nextImage))
		k.applyManifest()
		for _, node := range []string{"n1", "n2"} {
			k.importProbe(node)
		}
		k.ready(3*time.Minute, "nodes", "--all")
		k.pod("one", "n1", 0)
		k.pod("far", "n2", 0)
		k.ready(2*time.Minute, "pods", "--all")
		k.proveMesh("one", "far")
		if nightly() {
			k.proveMasquerade("one", "far")
		}

		end := k.startStream("one", "far")
		k.kubectl("set", "image", "-n", "kube-system", "daemonset/patchbay", "node="+nextImage)
		k.kubectl("rollout", "status", "-n", "kube-system", "daemonset/patchbay", "--timeout=3m")
		end()
		k.proveMesh("one", "far")
		if got := k.node("n2", "sh", "-c", "sha256sum </opt/cni/bin/patchbay"); got != run(t, "sh", "-c", "sha256sum <"+nextProgram()) {
			t.Errorf("n2 has not the plugins of the new agent: %s", got)
		}
		k.noAgentEvents()
		if nightly() {
			k.proveKeyRights()
		}
		k.proveUninstall([]string{"n1", "n2"}, "one", "far")
	})
}

// proveUninstall uninstalls the agents as a user does. While a node has a pod, the network's file
// stays, and the rollout waits. After it, nothing of the agents is on the nodes.
func (k *cluster) proveUninstall(nodes []string, pods ...string) {
	k.Helper()
	root, err := reftest.Root()
	if err != nil {
		k.Fatal(err)
	}
	manifest, err := os.ReadFile(root + "/daemons/dist/kubernetes/uninstall.yaml")
	if err != nil {
		k.Fatal(err)
	}
	k.applyText(string(manifest))
	eventually(k, "the uninstallation waits for the pods", func() error {
		started := k.kubectl("get", "pods", "-n", "kube-system", "--selector", "app.kubernetes.io/name=patchbay",
			"-o", "jsonpath={range .items[*]}{.metadata.name}:{.status.initContainerStatuses[*].state.running.startedAt}\n{end}")
		if strings.Count(started, ":20") != len(nodes) || strings.Count(started, "\n") > len(nodes) {
			return errors.New(started)
		}
		return nil
	})
	for _, node := range nodes {
		k.node(node, "ls", "/etc/cni/net.d/10-pods.conflist")
	}
	k.kubectl(append([]string{"delete", "pod"}, pods...)...)
	k.kubectl("rollout", "status", "-n", "kube-system", "daemonset/patchbay", "--timeout=3m")
	for _, node := range nodes {
		eventually(k, node+" is clean", func() error { // the container that stays cleans once more
			left := k.node(node, "sh", "-c", `
				ip -4 route show proto 113; ip -6 route show proto 113
				ls /sys/class/net | grep patchbay
				ls /etc/cni/net.d | grep -v containerd; find /run/patchbay/mesh /var/lib/patchbay/node -type f 2>/dev/null; true`)
			if left != "" {
				return errors.New(left)
			}
			return nil
		})
	}
}

// nightly reports whether tests run that a change cannot wait for.
func nightly() bool { return os.Getenv("PATCHBAY_NIGHTLY") == "1" }

// agentArchive is the archive of an image.
func agentArchive(image string) string {
	_, tag, _ := strings.Cut(image, ":")
	return os.Getenv(workEnv) + "/agent-" + tag + ".tar"
}

// nextProgram is our program of the other build.
func nextProgram() string { return os.Getenv(workEnv) + "/next/patchbay" }

// buildAgentImage makes the image of the programs under test.
func buildAgentImage(t *testing.T) {
	t.Helper()
	buildAgent(t)
	run(t, "go", "run", "../../daemons/dist/image", agentArchive(agentImage), agentImage, patchbay(), patchbayd())
}

// buildAgentImages makes this image, and one with other bytes.
func buildAgentImages(t *testing.T) {
	t.Helper()
	buildAgentImage(t)
	for _, err := range []error{
		goBuild(nextProgram(), "../../cmd/patchbay", "-ldflags=-s"),
		goBuild(nextProgram()+"d", "../../daemons/cmd/patchbayd", "-ldflags=-s"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, "go", "run", "../../daemons/dist/image", agentArchive(nextImage), nextImage, nextProgram(), nextProgram()+"d")
}

// applyManifest applies daemons/dist/kubernetes/patchbay.yaml with both families of the lab.
func (k *cluster) applyManifest() {
	k.Helper()
	root, err := reftest.Root()
	if err != nil {
		k.Fatal(err)
	}
	raw, err := os.ReadFile(root + "/daemons/dist/kubernetes/patchbay.yaml")
	if err != nil {
		k.Fatal(err)
	}
	const ipv4 = "            - --cluster-cidr=10.244.0.0/16\n"
	k.applyAgents(strings.Replace(string(raw), ipv4, ipv4+"            - --cluster-cidr=fd00:244::/56\n", 1))
}

// applyAgents applies a manifest and waits until the agents are ready.
func (k *cluster) applyAgents(manifest string) {
	k.Helper()
	k.applyText(manifest)
	k.kubectl("rollout", "status", "-n", "kube-system", "daemonset/patchbay", "--timeout=3m")
}

// noAgentEvents fails if the agent reports a problem of a node.
func (k *cluster) noAgentEvents() {
	k.Helper()
	if out := k.agentEvents(); out != "" {
		k.Errorf("Events of the agent:\n%s", out)
	}
}
