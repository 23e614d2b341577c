// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy compiles Kubernetes' network policies into a program for one node. It is pure:
// namespaces, pods and policies go in (State), and plain values come out (Program), which can
// be printed.
//
// A program is made for the sets and maps of nftables, into which package internal/policy/enforce turns it:
//
//   - A map gives each pod's address a number, its identity. Pods that no policy can distinguish
//     have the same identity. A number depends only on what it stands for, so two processes with
//     the same state choose the same numbers, and a change elsewhere changes none.
//   - A set holds the identities that one selector of a policy matches. All rules with this
//     selector share the set. If the label of a namespace changes, the sets get or lose the few
//     identities of this namespace, and the addresses of its thousands of pods stay as they are.
//   - A range set holds the address ranges of the ipBlocks of a rule.
//   - A chain holds the rules of one policy in one direction. All pods that the policy selects
//     share it. Its rules name sets and range sets, so they change only if the policy does.
//   - A pod of this node has a list of chains in each direction, and is isolated or not.
//
// Enforcement follows these rules, in this order. Program.Allows is their definition.
//
//  1. A packet of a connection that was allowed passes, and an ICMP error that belongs to one.
//  2. A packet of neighbour discovery or of multicast listener discovery passes.
//  3. A packet is judged by its addresses and its port after destination NAT and before source
//     NAT. So a Service's port is the port of the pod, and masquerading hides no source.
//  4. No NetworkPolicy keeps a pod from itself. A packet that comes back to its pod through a Service is
//     judged by the cluster's policies. What a pod sends to its own address never leaves the pod.
//  5. The policies of the sending pod must allow it (Egress).
//  6. A packet of this node itself, or of a pod in its network, may enter each of its pods. A
//     packet of another node comes from the world. A pod's packet to its node is judged.
//  7. The policies of the receiving pod must allow it (Ingress).
//  8. What is not allowed is dropped, without an answer.
//
// In each direction the tiers are asked in this order: Admin, NetworkPolicy, Baseline. See Tier.
//
// A pod in its ADD has no address yet and is not in the program. Decider decides about it.
//
// Pods in the node's network are neither judged nor matched by labels: they have the node's
// addresses. A pod that has finished has no address any more, because another pod may get it.
package policy
