// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package services keeps the agent's copy of those objects of the Kubernetes API that decide about Services, and decides when they
// are due to be compiled. It knows neither the API server nor the kernel: JSON of objects comes in (Cluster.Set, Delete, Replace),
// and states for services.Compile go out, with the names of the Services that changed (Cluster.Follow).
//
// The rules are:
//
//   - Nothing goes out before each kind of objects has been listed once: a part of the endpoints is worse than what is in force.
//   - If the API server cannot be reached, the last known objects stay. A list without this node's Node does not remove it.
//   - A burst of changes is one state. A change that Services cannot see, such as that of a status, is no change.
//   - A Service that changes, or has a slice that does, is compiled alone. A change of the Node, of its addresses or of a ServiceCIDR concerns all.
//   - Only what a program needs is kept, packed. Headless slices, and those without a Service, are not. Who needs more of Services of type
//     LoadBalancer reads it beside (Beside).
//   - Of an object that cannot be read, what can be read counts, and it is reported (Cluster.Problems).
package services
