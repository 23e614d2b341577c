// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/chart"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// storageNetwork is a network of one node. The node reaches its pods by ptp's routes.
const storageNetwork = `{"cniVersion":"1.1.0","type":"ptp","ipam":{"type":"host-local","subnet":"10.71.0.0/24"}}`

// TestFurtherNetworks gives pods further networks as a user does: the chart with networks, definitions and annotations. containerd 1.6 runs on n1
// and containerd 2 on n2.
func TestFurtherNetworks(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	if os.Getenv(insideEnv) == "" {
		buildAgent(t)
		run(t, "go", "run", "../../daemons/dist/image", agentArchive(agentImage), agentImage, patchbay(), patchbayd())
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		k.do("proxy", "nftables") // the agent reaches the API server through its Service
		k.do("images", agentArchive(agentImage))
		root, err := reftest.Root()
		if err != nil {
			t.Fatal(err)
		}
		k.kubectl("create", "-f", root+"/daemons/dist/kubernetes/network-attachment-definitions.yaml")
		k.applyText(chart.Render(k, func(v map[string]any) {
			v["clusterCIDRs"], v["networks"] = []string{"10.244.0.0/16", "fd00:244::/56"}, true
		}))
		k.importProbe("n1")
		k.importProbe("n2")
		k.ready(3*time.Minute, "nodes", "--all")
		k.define("storage", storageNetwork)
		for _, node := range []string{"n1", "n2"} {
			k.podSelecting("on-"+node, node, "storage,storage@extra0")
		}
		k.podSelecting("late", "n1", "later")
		k.ready(2*time.Minute, "pod", "on-n1", "on-n2")
		for _, node := range []string{"n1", "n2"} {
			k.proveNetworkStatus("on-"+node, node, "pods eth0, default/storage net1, default/storage extra0")
		}
		k.proveAwaited("late")
		k.proveOwnPods("on-n1")
		k.kubectl("delete", "pod", "--all", "--timeout=2m")
		for _, node := range []string{"n1", "n2"} {
			eventually(k, node+" has no plan of a pod", func() error {
				if left := k.node(node, "sh", "-c", "ls /var/lib/patchbay/attached /var/lib/cni/networks/storage | grep -v ':$\\|last_reserved\\|lock\\|^$'; true"); left != "" {
					return fmt.Errorf("%s", left)
				}
				return nil
			})
		}
	})
}

// define makes a NetworkAttachmentDefinition.
func (k *cluster) define(name, config string) {
	k.Helper()
	k.apply(object{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": object{"name": name}, "spec": object{"config": config}})
}

// podSelecting starts a pod that answers probes, with further networks.
func (k *cluster) podSelecting(name, node, networks string) {
	k.Helper()
	k.apply(object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "annotations": object{npwg.NetworksKey: networks}},
		"spec": object{
			"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never"}},
		},
	})
}

// networkStatus returns a pod's annotation network-status, and a summary of it.
func (k *cluster) networkStatus(pod string) (list []npwg.Status, summary string) {
	k.Helper()
	text := k.kubectl("get", "pod", pod, "-o", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
	json.Unmarshal([]byte(text), &list)
	var names []string
	for i := range list {
		names = append(names, list[i].Name+" "+list[i].Interface)
	}
	return list, strings.Join(names, ", ")
}

// proveNetworkStatus: a pod has the status that it should have, and answers at the addresses in it. The first network's are those of the pod.
func (k *cluster) proveNetworkStatus(pod, node, want string) {
	k.Helper()
	var list []npwg.Status
	eventually(k, "the status of "+pod, func() error {
		var got string
		if list, got = k.networkStatus(pod); got != want {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	if got, want := list[0].IPs, k.addrs(pod); fmt.Sprint(got) != fmt.Sprint(want) {
		k.Errorf("the status of %s has %v, and the pod %v", pod, got, want)
	}
	for _, s := range list[1:] {
		if a := netip.MustParseAddr(s.IPs[0]); !netip.MustParsePrefix("10.71.0.0/24").Contains(a) {
			k.Errorf("%s of %s has %v", s.Interface, pod, a)
		}
		k.node(node, probeProgram(), "who", "tcp", hostPort(s.IPs[0], probePort))
	}
}

// proveAwaited: a pod whose definition is missing does not start without its network. An Event says why, and when the definition comes, it starts.
func (k *cluster) proveAwaited(pod string) {
	k.Helper()
	eventually(k, "an Event on "+pod, func() error {
		out := k.kubectl("describe", "pod", pod)
		if !strings.Contains(out, "there is no NetworkAttachmentDefinition default/later: create it") || !strings.Contains(out, "definition default/later: not in the node's mirror") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	k.define("later", strings.ReplaceAll(storageNetwork, "10.71.0", "10.72.0"))
	k.ready(2*time.Minute, "pod", pod)
	eventually(k, "the status of "+pod, func() error {
		if _, got := k.networkStatus(pod); got != "pods eth0, default/later net1" {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}

// proveOwnPods: the account of the agents may change nothing of pods but this annotation, and only on the node of its token.
func (k *cluster) proveOwnPods(pod string) {
	k.Helper()
	uid := k.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
	for _, c := range []struct{ node, patch, want string }{
		{"n1", `{"metadata":{"uid":"` + uid + `","annotations":{"k8s.v1.cni.cncf.io/network-status":"[]"}}}`, ""},
		{"n2", `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[1]"}}}`, "may change only pods of the Node on which it runs"},
		{"n1", `{"metadata":{"uid":"11111111-1111-1111-1111-111111111111","annotations":{"k8s.v1.cni.cncf.io/network-status":"[1]"}}}`, "metadata.uid"},
		{"n1", `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":"other"}}}`, "may change only the annotation k8s.v1.cni.cncf.io/network-status"},
		{"n1", `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":null}}}`, "may change only the annotation k8s.v1.cni.cncf.io/network-status"},
		{"n1", `{"metadata":{"labels":{"app":"other"}}}`, "not its status, labels or finalizers"},
		{"n1", `{"status":{"podIP":"192.0.2.1","podIPs":[{"ip":"192.0.2.1"}]}}`, "not its status, labels or finalizers"},
	} {
		_, err := k.asAgent(c.node).Request(k.Context(), http.MethodPatch, "/api/v1/namespaces/default/pods/"+pod+"/status", "application/merge-patch+json", []byte(c.patch))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			k.Errorf("the agent of %s patches %s of n1 with %s: %v, want %q", c.node, pod, c.patch, err, c.want)
		}
	}
}
