// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// signetwork lists Kubernetes' own specs of networks: which we run, and why not the others.
//
//go:embed testdata/signetwork.txt
var signetwork string

// signetworkServices lists those of them that run without kube-proxy, and why not the others.
//
//go:embed testdata/signetworkservices.txt
var signetworkServices string

// oneSegment is the line above the specs that run where all nodes are on one segment. Elsewhere they fail with kube-proxy, too: if a node connects to its
// own node port, it gets the address of the link that leads to the endpoint.
const oneSegment = "run on one segment, since a node's packet has another source in a tunnel"

// specs are the lists of signetwork.txt by the line above them, without its colon.
func specs(t *testing.T) map[string][]string {
	t.Helper()
	return specsIn(t, "signetwork.txt", signetwork)
}

// servicesSpecs are those of signetworkservices.txt.
func servicesSpecs(t *testing.T) map[string][]string {
	t.Helper()
	return specsIn(t, "signetworkservices.txt", signetworkServices)
}

func specsIn(t *testing.T, file, text string) map[string][]string {
	t.Helper()
	lists, head := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch name, isHead := strings.CutSuffix(line, ":"); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[sig-network] "):
			lists[head] = append(lists[head], line)
		case isHead && (name == "run" || name == oneSegment || name == "load balancers" || strings.HasPrefix(name, "network policies") || strings.HasPrefix(name, "left out, ")):
			head = name
		default:
			t.Fatalf("%s: neither a spec nor a reason: %q", file, line)
		}
	}
	if list := lists[""]; len(list) > 0 {
		t.Errorf("%s: %d specs below no heading", file, len(list))
	}
	return lists
}

// once returns the specs of all lists, sorted, and fails the test if one is there twice.
func once(t *testing.T, file string, lists map[string][]string) []string {
	t.Helper()
	listed := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(lists))...)))
	single := slices.Compact(slices.Clone(listed))
	if len(single) != len(listed) {
		t.Errorf("%s lists %d specs twice", file, len(listed)-len(single))
	}
	return single
}

// kubetest runs a command of test/labs/kubetest.
func kubetest(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, reftest.Lab(t, "kubetest/kubetest"), args...)
}

// TestSigNetworkList: each spec of sig-network is either run or left out with a reason, none
// twice, and all exist. The programs are there on a machine that had `scripts/setup nightly`;
// elsewhere only the file and its version are looked at.
func TestSigNetworkList(t *testing.T) {
	listed := once(t, "signetwork.txt", specs(t))
	mod, err := os.ReadFile(reftest.Lab(t, "kubetest/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`k8s.io/kubernetes (\S+)`).FindSubmatch(mod)[1]
	if !strings.Contains(signetwork, "Kubernetes "+string(version)+",") {
		t.Errorf("signetwork.txt is not of Kubernetes %s: compare it with `kubetest list`", version)
	}
	programs := run(t, reftest.Lab(t, "../../scripts/pinned"), "-n", reftest.Lab(t, "kubetest"))
	if _, err := os.Stat(programs + "/e2e.test"); err != nil {
		t.Logf("specs not compared: %v", err)
		return
	}
	there := strings.Split(kubetest(t, "list"), "\n")
	for _, spec := range there {
		if !slices.Contains(listed, spec) {
			t.Errorf("signetwork.txt does not list %s", spec)
		}
	}
	for _, spec := range listed {
		if !slices.Contains(there, spec) {
			t.Errorf("signetwork.txt lists a spec that does not exist: %s", spec)
		}
	}
}

// TestSigNetworkServicesList: each spec that runs with kube-proxy either runs without it, or is left out with a reason.
func TestSigNetworkServicesList(t *testing.T) {
	want := slices.Sorted(slices.Values(specs(t)["run"]))
	if got := once(t, "signetworkservices.txt", servicesSpecs(t)); !slices.Equal(got, want) {
		t.Errorf("signetworkservices.txt lists %d specs, want the %d that signetwork.txt has below run:\n%s", len(got), len(want), cmp.Diff(want, got))
	}
}

// TestSigNetwork runs Kubernetes' own tests on three nodes whose network is that of
// `patchbayd node`, one of them behind a router. PATCHBAY_KUBE_E2E is the directory for its
// logs and makes it run: it takes half an hour (`scripts/nightly clusters`).
// PATCHBAY_KUBE_E2E_FOCUS restricts it to specs whose names match.
func TestSigNetwork(t *testing.T) {
	onTested(t, func(k *cluster, logs string) {
		k.runSpecs(logs, specs(t)["run"], os.Getenv("PATCHBAY_KUBE_E2E_FOCUS"))
	})
}

// withServices is the flag of agents that do what kube-proxy does elsewhere, and withLoadBalancers that of agents that do
// what a cloud does.
const (
	withServices      = "--services=on"
	withLoadBalancers = "--load-balancers=on"
)

// TestSigNetworkServices runs those of these tests that need Services, and no kube-proxy. PATCHBAY_KUBE_E2E_FOCUS is as for TestSigNetwork.
func TestSigNetworkServices(t *testing.T) {
	onTested(t, func(k *cluster, logs string) {
		k.runSpecs(logs, servicesSpecs(t)["run"], os.Getenv("PATCHBAY_KUBE_E2E_FOCUS"))
	}, withServices)
}

// TestSigNetworkOneSegment runs those for which all nodes must be on one segment, without kube-proxy.
func TestSigNetworkOneSegment(t *testing.T) {
	onTestedOf(t, []string{"3", "containerd2=n2,n3"}, func(k *cluster, logs string) {
		k.runSpecs(logs, specs(t)[oneSegment], "")
	}, withServices)
}

// TestSigNetworkLoadBalancers runs those that need load balancers, which get addresses of the nodes' segment, without kube-proxy.
func TestSigNetworkLoadBalancers(t *testing.T) {
	onTestedOf(t, []string{"3", "containerd2=n2,n3"}, func(k *cluster, logs string) {
		k.apply(object{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "pools", "namespace": "patchbay-load-balancers"},
			"data": object{"lan": "10.99.0.128/26\nfd00:99::1000/120"},
		})
		k.runSpecs(logs, specs(t)["load balancers"], os.Getenv("PATCHBAY_KUBE_E2E_FOCUS"))
	}, withServices, withLoadBalancers)
}

// onTested gives body a cluster of three nodes that Kubernetes' own tests can use, one of them behind a router, and a directory
// for its logs. flags are further flags of the agents.
func onTested(t *testing.T, body func(k *cluster, logs string), flags ...string) {
	t.Helper()
	onTestedOf(t, []string{"3", "routed", "containerd2=n2,n3"}, body, flags...)
}

// onTestedOf does so with other arguments of `kube up`.
func onTestedOf(t *testing.T, how []string, body func(k *cluster, logs string), flags ...string) {
	t.Helper()
	logs := os.Getenv("PATCHBAY_KUBE_E2E")
	if logs == "" {
		t.Log("not without PATCHBAY_KUBE_E2E")
		return
	}
	agnhost := os.Getenv(workEnv) + "/agnhost"
	if os.Getenv(insideEnv) == "" {
		for program, dir := range map[string]string{patchbayd(): "../../daemons/cmd/patchbayd", agnhost: "./testdata/agnhost"} {
			if err := goBuild(program, dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	onNode(t, func(t *testing.T) {
		k := newCluster(t, how...)
		k.agentFlags = flags
		kubetest(t, "policies") // before the agents look for it
		k.agentAccount()
		for _, node := range []string{"n1", "n2", "n3"} {
			k.startAgent(node)
		}
		k.do("routes", "cp", "fabric") // the API server reaches pods, too
		if !slices.Contains(flags, withServices) {
			k.do("proxy", "nftables")
		}
		prepare := []string{"prepare"}
		if !strings.HasPrefix(t.Name(), "TestSigNetwork") {
			prepare = append(prepare, agnhost) // with SCTP
		}
		kubetest(t, prepare...)
		body(k, filepath.Join(logs, t.Name()))
	})
}

// runSpecs runs those of the specs whose names match a pattern. One that skips itself belongs
// to those that are left out.
func (k *cluster) runSpecs(logs string, list []string, focus string) {
	k.Helper()
	match := regexp.MustCompile(focus).MatchString
	list = slices.DeleteFunc(slices.Clone(list), func(spec string) bool { return !match(spec) })
	out, err := k.runKubetest(logs, list)
	k.Logf("%s", out)
	if err != nil || !strings.Contains(out, fmt.Sprintf("-- %d Passed | 0 Failed", len(list))) {
		k.Errorf("%v, want %d specs passed; the log is %s/log", err, len(list), logs)
	}
}

// runKubetest runs specs and returns what Ginkgo says of the results.
func (k *cluster) runKubetest(logs string, list []string) (string, error) {
	k.Helper()
	file := filepath.Join(k.dir, "specs")
	if err := os.WriteFile(file, []byte(strings.Join(list, "\n")+"\n"), 0o644); err != nil {
		k.Fatal(err)
	}
	out, err := exec.Command(reftest.Lab(k, "kubetest/kubetest"), "run", logs, file).CombinedOutput()
	return string(out), err
}
