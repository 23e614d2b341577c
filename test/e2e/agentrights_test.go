// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/patchbay-net/patchbay/daemons/node"
	"github.com/patchbay-net/patchbay/daemons/test/chart"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
)

// proveKeyRights runs agents with WireGuard. With the rights of the manifest, which is for another
// transport, the API server refuses their keys, and an Event says what to do. The rights of the
// chart let them publish the keys, and no more. The kernel needs no WireGuard for that.
func (k *cluster) proveKeyRights() {
	k.Helper()
	defer k.took("rights")()
	both := func(v map[string]any) { v["clusterCIDRs"] = []string{"10.244.0.0/16", "fd00:244::/56"} }
	encrypted := func(v map[string]any) { both(v); v["transport"] = "wireguard" }
	want := strings.Split(chart.Render(k, encrypted), "\n---\n")
	weak := append([]string{want[0], strings.Split(chart.Render(k, both), "\n---\n")[1]}, want[2:]...)

	k.applyText(strings.Join(weak, "\n---\n"))
	eventually(k, "an Event of the right that is missing", func() error {
		if out := k.agentEvents(); !strings.Contains(out, "WireGuardKeyNotPublished: ") || !strings.Contains(out, "apply the chart with the transport wireguard") {
			return fmt.Errorf("Events:\n%s", out)
		}
		return nil
	})
	if out := k.publishedKeys(); out != "" {
		k.Errorf("without the right, published: %s", out)
	}
	k.applyText(strings.Join(want, "\n---\n"))
	eventually(k, "a key of a node is published", func() error {
		if k.publishedKeys() == "" {
			return fmt.Errorf("none")
		}
		return nil
	})
	for _, line := range strings.Fields(k.publishedKeys()) {
		node, key, _ := strings.Cut(line, "=")
		keys, err := wirekey.Open(k.Context(), filepath.Join(k.dir, "nodes", node, "overlay/var_lib/upper/patchbay/node/wireguard"))
		if err != nil || key != keys.Public.String() {
			k.Errorf("%s has published %s, its key is %v (%v)", node, key, keys, err)
		}
	}
	k.proveStatusOnly()
}

// proveStatusOnly checks that the right to the status of Nodes is none to their podCIDRs and taints, and that an agent
// has it for annotations of its own Node alone.
func (k *cluster) proveStatusOnly() {
	k.Helper()
	spec := func() string { return k.kubectl("get", "node", "n1", "-o", "jsonpath={.spec}") }
	before, api := spec(), k.asAgent("n1")
	if err := api.PatchNode(k.Context(), "n1", []byte(`{"metadata": {"annotations": {"patchbay.net/probe": "x"}},
		"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"], "taints": [{"key": "x", "effect": "NoSchedule"}]}}`)); err != nil {
		k.Error(err)
	}
	if after := spec(); after != before {
		k.Errorf("the right to nodes/status changed\n%s\nto\n%s", before, after)
	}
	if got := k.kubectl("get", "node", "n1", "-o", `jsonpath={.metadata.annotations.patchbay\.net/probe}`); got != "x" {
		k.Errorf("the annotation is %q", got)
	}
	for patch, node := range map[string]string{
		`{"metadata": {"annotations": {"patchbay.net/probe": "x"}}}`:                  "n2",
		`{"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}`: "n1",
	} {
		if err := api.PatchNode(k.Context(), node, []byte(patch)); err == nil || !strings.Contains(err.Error(), "an agent of patchbay may change") {
			k.Errorf("the agent of n1 patches %s with %s: %v", node, patch, err)
		}
	}
	if _, err := api.ListNodes(k.Context(), metav1.ListOptions{}); err != nil {
		k.Error(err)
	}
}

// asAgent is the API server as the agent of a node may use it.
func (k *cluster) asAgent(of string) node.API {
	k.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", k.dir+"/cfg/admin.kubeconfig")
	if err != nil {
		k.Fatal(err)
	}
	c.Impersonate.UserName = "system:serviceaccount:kube-system:patchbay"
	c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {of}}
	c.Dial = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		return conn, within("kl-cp", func() (err error) { conn, err = new(net.Dialer).DialContext(ctx, network, addr); return err })
	}
	api, err := node.NewAPI(c)
	if err != nil {
		k.Fatal(err)
	}
	return api
}

// publishedKeys are the nodes' WireGuard keys in the API server, as n1=KEY.
func (k *cluster) publishedKeys() string {
	k.Helper()
	const show = `{range .items[?(@.metadata.annotations.patchbay\.net/wireguard-key)]}{.metadata.name}={.metadata.annotations.patchbay\.net/wireguard-key}{"\n"}{end}`
	return strings.TrimSpace(k.kubectl("get", "nodes", "-o", "jsonpath="+show))
}

// applyText applies a manifest.
func (k *cluster) applyText(manifest string) {
	k.Helper()
	file := k.dir + "/patchbay.yaml"
	k.write(file, manifest)
	k.kubectl("apply", "-f", file)
}

// agentEvents are the agents' Events, a line each.
func (k *cluster) agentEvents() string {
	k.Helper()
	const show = `{range .items[?(@.source.component=="patchbayd")]}{.reason}: {.message}{"\n"}{end}`
	return k.kubectl("get", "events", "-A", "-o", "jsonpath="+show)
}
