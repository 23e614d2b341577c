// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package api has the objects of the Kubernetes API that decide about traffic, each with the fields that the
// oracle of policytest reads. Types, fields and values have the names that they have in k8s.io/api,
// k8s.io/apimachinery and sigs.k8s.io/network-policy-api. Those modules are not used here, because tests count too:
// a user of the library would get their versions. TestAPIIsUpstreams of daemons/node/policies compares
// each field's JSON.
package api
