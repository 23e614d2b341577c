// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policyreport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// report is what upstream's tests write.
const report = `apiVersion: policy.networking.k8s.io/v1alpha1
date: "2026-09-18T15:14:48-07:00"
implementation:
  additionalInformation: https://github.com/patchbay-net/patchbay/actions/runs/1
  contact:
  - https://github.com/patchbay-net/patchbay/issues/new
  organization: patchbay-net
  project: patchbay
  url: https://github.com/patchbay-net/patchbay
  version: v0.1.0-12-g9984dcd
kind: ConformanceReport
networkPolicyV2APIVersion: v0.2.0
profiles:
- experimental:
    result: success
    statistics:
      Failed: 0
      Passed: 6
      Skipped: 0
    summary: ""
    supportedFeatures:
    - ClusterNetworkPolicyNamedPorts
    - ClusterNetworkPolicyEgressNodePeers
  name: ClusterNetworkPolicy
  standard:
    result: success
    statistics:
      Failed: 0
      Passed: 18
      Skipped: 0
    summary: ""
`

func TestReport(t *testing.T) {
	if err := Check([]byte(report), 24); err != nil {
		t.Error(err)
	}
	if v, err := APIVersion([]byte(report)); v != "v0.2.0" || err != nil {
		t.Errorf("%s, %v", v, err)
	}
	dir := t.TempDir()
	name, err := Write(dir, "v0.2.0", []byte(report))
	if text, _ := os.ReadFile(filepath.Join(dir, "v0.2.0", "patchbay.yaml")); err != nil || string(text) != report {
		t.Errorf("%s has %s, %v", name, text, err)
	}
}

// TestRefused changes one thing that upstream does not take.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"kind: ConformanceReport", "kind: Report", "it is a Report of"},
		{"version: v0.1.0-12-g9984dcd", `version: ""`, "the implementation is incomplete"},
		{"Passed: 18", "Passed: 17", "23 groups passed, and not 24"},
		{"Skipped: 0\n    summary: \"\"\n    supportedFeatures", "Skipped: 1\n    summary: \"\"\n    supportedFeatures", "experimental is success: {Passed:6 Skipped:1 Failed:0}"},
		{"result: success\n    statistics:\n      Failed: 0\n      Passed: 18", "result: failure\n    statistics:\n      Failed: 1\n      Passed: 18", "standard is failure"},
		{"    - ClusterNetworkPolicyNamedPorts\n", "", "it claims the features [ClusterNetworkPolicyEgressNodePeers]"},
		{"name: ClusterNetworkPolicy\n", "name: AdminNetworkPolicy\n", "it lacks the profile ClusterNetworkPolicy"},
		{"profiles:", "profils:", `unknown field "profils"`},
	} {
		text := strings.Replace(report, c.from, c.to, 1)
		if err := Check([]byte(text), 24); text == report || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q instead of %q: %v, want %q", c.to, c.from, err, c.want)
		}
	}
}
