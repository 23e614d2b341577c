module github.com/patchbay-net/patchbay/test/labs/policyapi

go 1.26.0

require sigs.k8s.io/network-policy-api v0.2.0 // indirect

tool sigs.k8s.io/network-policy-api/conformance
