// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package npwg is what a pod's further networks are, by the Kubernetes Network Custom Resource Definition De-facto Standard
// 1.3 of the Network Plumbing Working Group ("§" in comments): which networks a pod's annotation selects (Parse), which
// interfaces they get (Name), what a network's definition says (Named, Configure), what the pod asks of a plugin (Ask), the plan
// of all this (Plan), and what the pod's status says afterwards (Status). Values in, values out: it reads no file and calls no plugin.
//
// Where Multus differs from the standard, this package does what users of Multus rely on, and a parameter `strict` gives the
// standard's letter. docs/plugins/networks.md lists these places.
package npwg

// These are the annotations of the standard (§4.1, §5).
const (
	NetworksKey = "k8s.v1.cni.cncf.io/networks"
	StatusKey   = "k8s.v1.cni.cncf.io/network-status"
)
