// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policyreport checks and files the report of upstream's conformance tests of ClusterNetworkPolicy. Upstream takes
// it only as its tests wrote it, so nothing here changes a byte:
// https://github.com/kubernetes-sigs/network-policy-api/blob/main/conformance/reports/README.md
package policyreport

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	conformance "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Features are the experimental ones, as upstream calls them. We claim all.
var Features = []string{"ClusterNetworkPolicyEgressNodePeers", "ClusterNetworkPolicyNamedPorts"}

// Check says what upstream would refuse in a report of all tests. groups is their number, standard and experimental.
func Check(text []byte, groups int) error {
	var r conformance.ConformanceReport
	if err := yaml.UnmarshalStrict(text, &r); err != nil {
		return fmt.Errorf("read the report: %w", err)
	}
	var wrong []error
	want := func(ok bool, format string, values ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, values...))
		}
	}
	want(r.Kind == "ConformanceReport" && r.APIVersion == "policy.networking.k8s.io/v1alpha1", "it is a %s of %s", r.Kind, r.APIVersion)
	i := r.Implementation
	want(i.Organization != "" && i.Project == "patchbay" && i.URL != "" && i.Version != "" && len(i.Contact) > 0 && i.AdditionalInformation != "",
		"the implementation is incomplete: %+v", i)
	if len(r.ProfileReports) != 1 || r.ProfileReports[0].Name != "ClusterNetworkPolicy" || r.ProfileReports[0].Experimental == nil {
		return errors.Join(append(wrong, fmt.Errorf("it lacks the profile ClusterNetworkPolicy with its experimental part: %+v", r.ProfileReports))...)
	}
	p := r.ProfileReports[0]
	slices.Sort(p.Experimental.SupportedFeatures)
	want(slices.Equal(p.Experimental.SupportedFeatures, Features), "it claims the features %v, and not %v", p.Experimental.SupportedFeatures, Features)
	for level, s := range map[string]conformance.Status{"standard": p.Standard, "experimental": p.Experimental.Status} {
		want(s.Result == conformance.Success && s.Failed == 0 && s.Skipped == 0, "%s is %s: %+v, failed %v, skipped %v", level, s.Result, s.Statistics, s.FailedTests, s.SkippedTests)
	}
	passed := int(p.Standard.Passed + p.Experimental.Passed)
	want(passed == groups, "%d groups passed, and not %d", passed, groups)
	return errors.Join(wrong...)
}

// APIVersion is the release of network-policy-api that a report names.
func APIVersion(text []byte) (string, error) {
	var r conformance.ConformanceReport
	err := yaml.Unmarshal(text, &r)
	return r.NetworkPolicyV2APIVersion, err
}

// Write puts the report where upstream's repository has it below conformance/reports, and returns the file's name.
// release is that of network-policy-api.
func Write(dir, release string, text []byte) (string, error) {
	name := filepath.Join(dir, release, "patchbay.yaml")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", err
	}
	return name, os.WriteFile(name, text, 0o644)
}
