// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package servicetest tests an engine of Kubernetes Services against an oracle: plain, slow Go that answers for one packet at
// a time where it goes from one node. The oracle shares no code with any engine, so a mistake must be made twice to stay hidden.
//
//	servicetest.Compare(t, newEngine, servicetest.Plan{Tables: 1000})
//
// Compare draws clusters from a seed, as one node sees them: Services, EndpointSlices, the Node, its addresses, the flags of the
// agent, and changes of all of them. For each state of a cluster it asks the engine and the oracle about packets. It also
// compares what clients with affinity remember, which flows of UDP are to be looked at, and what health checks answer.
//
// The oracle follows Kubernetes 1.36 and its kube-proxy in the mode nftables. Where implementations differ, its answers are:
//
//   - Two Services want one address and port, or one node port: cluster IPs come before load balancers' addresses, these before
//     external IPs; then the names of Services and ports decide.
//   - Affinity is of a client's address and of the address, protocol and port to which it connects.
//   - Of two entries of one endpoint that both terminate or both do not, the ready one counts, then the serving one, then the one
//     in the slice whose name comes first.
//   - A local pod is one with an address of this node's podCIDRs. Without a podCIDR of a family no pod of it is known.
//   - Source ranges of which none can be read let nobody in.
//   - An address of this node is not dropped because it is in a ServiceCIDR.
//   - A UDP Service without any serving endpoint has no flows: upstream leaves them (kubernetes#139628).
package servicetest
