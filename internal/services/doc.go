// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package services compiles Kubernetes' Services into a program for one node. It is pure: Services, EndpointSlices and the
// Node go in (State), and plain values come out (Program). Nothing here touches the kernel or the API.
//
// A program is made for a table of nftables with a fixed set of chains and only plain sets and data maps (ADR 92). A change of a
// verdict map with an element for each Service would cost milliseconds, and every chain would slow all transactions of the node. So a
// Service is nothing but elements (Element):
//
//   - A frontend is what a client connects to: an address, a protocol and a port, or a node port. If it has one endpoint, the map One
//     translates it.
//   - Otherwise the frontend is in the set of a class B, a power of two, and its N endpoints are in the slots 0 to N-1 of
//     the class's map. A rule of the class draws a slot below B, and draws again if the slot is empty. A change of one endpoint is
//     the change of at most two slots (keep), and amortised one more when N crosses a power of two.
//   - Sets of frontends say what is special: which have affinity, masquerade, source ranges, or no endpoint.
//
// Compile makes a program of everything. Update compiles again the Services that changed, and Diff compares two programs, as after
// a start of the agent. Both return a Change of elements. Program.Verdict says what a program means for a packet.
//
// The rules, in this order:
//
//  1. Only the first packet of a connection is judged.
//  2. A frontend at an address of a Service comes before node ports. Of several Services that want one frontend, cluster IPs
//     come before load balancers' addresses, and these before external IPs; then names decide.
//  3. A source that is not in loadBalancerSourceRanges is dropped, at load balancers' addresses only.
//  4. Policies: internalTrafficPolicy is for cluster IPs, externalTrafficPolicy for all others. The latter does not hold for
//     pods of this node and the node itself.
//  5. Endpoints: the ready ones that topology hints allow, and if none is ready, those that serve while they terminate. With
//     a policy Local only those on this node, and hints do not count.
//  6. No endpoint anywhere is refused. No endpoint here but elsewhere, with a policy Local, is dropped.
//  7. Anything else to a cluster IP is refused, anything else in a ServiceCIDR is dropped, unless it is an address of the node.
//
// Masquerade: whatever comes to a frontend other than a cluster IP, unless its policy is Local and the client is not the node
// itself; what comes to a cluster IP from others than pods; and who comes back to itself.
//
// Pods are known by the node's podCIDRs. A pod of another node is not one of ours: its own node has translated its packets.
package services
