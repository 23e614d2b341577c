// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package lan gives Services of type LoadBalancer addresses of a LAN, and decides which node answers for each of them.
//
// Make is pure: it computes from the API's objects what one node has to do now. Every node does so by itself; there is no controller.
//
// Two kinds of Leases (coordination.k8s.io/v1) keep the nodes apart. Both are in one namespace that is for nothing else:
//
//   - The Lease of an address. Its name is made of the address, so the API server lets only one be created: no two Services get one address.
//     Its annotations name the Service. Its holder is a session, or nobody.
//   - The Lease of a node. Its holder is the node's session, a name that is never used again. The node renews it while it has or wants an
//     address. A session ends when it was not renewed for its duration, and can then not be continued, not even by its own node.
//
// A node owns an address as long as the Lease of the address names its session, and the session has not ended by the node's own clock. Others take
// the address when the session has ended by their clocks, which is later, as they count from the moment when they saw the renewal, and after they
// have asked the API server once more. So at most one node answers, with any delays and losses of messages; if the API server does not answer,
// none does.
//
// Nodes need no agreement on who is next. Those that may own an address have an order, other ones for each Service, and each waits
// a moment longer than the one before. If two try, the API server lets one win.
package lan
