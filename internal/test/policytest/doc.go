// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policytest tests an engine of network policies against an oracle: plain, slow Go that
// answers for one probe at a time what the Kubernetes API promises. The oracle shares no code with
// any engine, so a mistake must be made twice to stay hidden.
//
//	policytest.Compare(t, newEngine, policytest.Plan{Seed: seed, Tables: 1000})
//
// Compare draws clusters from a seed: namespaces, pods, nodes, policies, and changes of all of
// them. For each state of a cluster it asks the engine and the oracle about every probe between
// the addresses of the cluster, which is one truth table. If an answer differs, Compare removes
// objects, rules and fields as long as the answers differ, and prints what is left as JSON.
//
// The oracle itself has four witnesses: the tables of the checklist, the planted bugs that these
// tables tell, and two engines of others. The matcher of NetworkPolicies of Cyclonus v0.5.6 answered
// 10,000 tables of 300 probes as the oracle did, except that its NotIn does not match an object without
// the key. There apimachinery agrees with the oracle (TestSelectors of daemons/node/policies). The evaluator of
// kube-network-policies v1.1.0 answers as the oracle did, also about ClusterNetworkPolicies; `make e2e`
// asks it each time (Witness). Where it may differ, excuse.go gives the reason.
//
// # What a probe is
//
// A probe is the first packet of a connection, with the addresses and the port that the packet has
// after destination NAT and before source NAT. The oracle decides on these, however the packet
// travelled: a pod that reaches another pod of its node through a Service is still a pod.
//
// # Where Kubernetes leaves the answer open
//
//   - An address of a node other than the pod's own is like any address outside the cluster. Only
//     an ipBlock, a rule without peers, or a cluster policy's nodes match it.
//   - A cluster policy's nodes match the addresses of the nodes in the API, and also the first two addresses of their
//     podCIDRs, if no pod has them: by these the node can be reached too.
//   - A pod with hostNetwork has the node's addresses. No policy selects such a pod, and no selector
//     of pods matches its traffic.
//   - A NetworkPolicy that selects a pod for one direction leaves the tier Baseline in force for the other.
//   - No NetworkPolicy keeps a pod from itself. A cluster policy can: it judges what comes back to its pod
//     through a Service. What a pod sends to its own address never leaves the pod, and is no probe.
//   - Traffic of a pod's own node to the pod is always allowed, in every tier: otherwise an Admin policy
//     could stop the kubelet's probes.
//   - A rule of a cluster policy with a field of a later version of the API, at any depth, is closed as one with a peer
//     of a later version: Accept matches nothing, and any other action denies everything in the rule's
//     direction. A field beside the rules closes each of them. One in the subject denies every pod everything.
//   - A policy that isolates a pod also stops its ICMP, unless a rule without ports allows it.
//   - A named port of an init container counts only if that container keeps running beside the
//     others (a sidecar), as for Services.
//   - Several policies may allow a probe, or isolate the pod in the direction that denies it. An
//     engine may name any of them as the deciding policy.
package policytest
