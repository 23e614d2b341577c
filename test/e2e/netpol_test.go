// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/policyreport"
)

// These are the numbers of Kubernetes' own specs of network policies. The specs of SCTP open
// associations without a socket of the kernel (package sctp).
const (
	netpolSpecs = 45
	netpolSCTP  = 3
)

// withEngine and withoutEngine are flags of the agents.
const (
	withEngine    = "--network-policy=on"
	withoutEngine = "--network-policy=off"
)

// netpolList returns these specs.
func netpolList(t *testing.T) []string {
	t.Helper()
	list, sctp := specs(t)["network policies"], specs(t)["network policies of SCTP"]
	if len(list) != netpolSpecs || len(sctp) != netpolSCTP {
		t.Fatalf("signetwork.txt lists %d specs of network policies and %d of SCTP, want %d and %d", len(list), len(sctp), netpolSpecs, netpolSCTP)
	}
	return slices.Concat(list, sctp)
}

// TestNetpol runs Kubernetes' own tests of network policies on a cluster as TestSigNetwork has it.
// None may be skipped.
func TestNetpol(t *testing.T) {
	onTested(t, func(k *cluster, logs string) {
		began := time.Now()
		k.runSpecs(logs, netpolList(t), os.Getenv("PATCHBAY_KUBE_E2E_FOCUS"))
		k.Logf("took %v", time.Since(began).Round(time.Second))
	}, withEngine)
}

// TestNetpolWithoutEngine checks that the specs of TestNetpol notice if no agent enforces policies. A
// few expect that all traffic passes.
func TestNetpolWithoutEngine(t *testing.T) {
	const fail = 40
	onTested(t, func(k *cluster, logs string) {
		out, _ := k.runKubetest(logs, netpolList(t)) // fails
		counts := regexp.MustCompile(`-- (\d+) Passed \| (\d+) Failed`).FindStringSubmatch(out)
		if counts == nil {
			k.Fatalf("no result; the log is %s/log:\n%s", logs, out)
		}
		passed, _ := strconv.Atoi(counts[1])
		failed, _ := strconv.Atoi(counts[2])
		k.Logf("%d specs passed, %d failed", passed, failed)
		if passed+failed != netpolSpecs+netpolSCTP || failed < fail {
			k.Errorf("%d specs failed and %d passed; want at least %d to fail", failed, passed, fail)
		}
	}, withoutEngine)
}

// These are the numbers of groups of the conformance tests of ClusterNetworkPolicy, and of all of
// their tests.
const (
	conformanceGroups = 24
	conformanceTests  = 92
)

// TestClusterNetworkPolicy runs the conformance tests of ClusterNetworkPolicy (v1alpha2), the
// standard and the experimental ones. None may be skipped. It puts upstream's report into the directory PATCHBAY_REPORT,
// if that is set.
func TestClusterNetworkPolicy(t *testing.T) {
	onTested(t, func(k *cluster, logs string) {
		began := time.Now()
		var groups []string
		if focus := os.Getenv("PATCHBAY_KUBE_E2E_FOCUS"); focus != "" {
			groups = append(groups, focus)
		}
		out, err := exec.Command(reftest.Lab(k, "kubetest/kubetest"), append([]string{"conformance", logs}, groups...)...).CombinedOutput()
		k.Logf("took %v:\n%s", time.Since(began).Round(time.Second), out)
		count := func(depth int) int {
			return len(regexp.MustCompile(`(?m)^`+strings.Repeat(" ", 4*depth)+`--- PASS: `).FindAll(out, -1))
		}
		if err != nil || len(groups) == 0 && (count(1) != conformanceGroups || count(2) != conformanceTests) {
			k.Errorf("%v: %d groups with %d tests passed, want %d with %d; the log is %s/log", err, count(1), count(2), conformanceGroups, conformanceTests, logs)
		}
		if dir := os.Getenv("PATCHBAY_REPORT"); dir != "" && err == nil && len(groups) == 0 {
			k.report(dir, filepath.Join(logs, "report.yaml"))
		}
	}, withEngine)
}

// report files the report of the conformance tests, which upstream takes.
func (k *cluster) report(dir, file string) {
	k.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = policyreport.Check(text, conformanceGroups)
	}
	if err != nil {
		k.Fatalf("the report of the conformance tests: %v", err)
	}
	pin, err := os.ReadFile("../labs/policyapi/go.mod")
	if err != nil {
		k.Fatal(err)
	}
	release := regexp.MustCompile(`network-policy-api (v\S+)`).FindStringSubmatch(string(pin))[1]
	name, err := policyreport.Write(dir, release, text)
	if err != nil {
		k.Fatal(err)
	}
	if says, err := policyreport.APIVersion(text); says != release {
		k.Logf("the report says that it is of %q of the API (%v), but these tests are of %s: docs/kubernetes.md", says, err, release)
	}
	k.Logf("wrote %s", name)
}
