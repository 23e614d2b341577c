// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policies keeps the agent's copy of those objects of the Kubernetes API that decide about
// network policies, and decides when a new program is due. It knows neither the API server nor the
// kernel: JSON of objects comes in (Cluster.Set, Delete, Replace), and states for policy.Compile go
// out (Cluster.Follow).
//
// The rules are:
//
//   - Nothing goes out before each kind of objects has been listed once. Until then, the policies
//     that are in force on the node are better than a part of the new ones.
//   - If the API server cannot be reached, the last known objects stay in force. Cluster.Losses
//     reports which kinds are not followed, and since when.
//   - A burst of changes is one state. A change that policies cannot see, such as that of a pod's
//     readiness, is no change.
//   - Only what a program needs is kept: 8 MB for 20,000 pods, and 4 MB for 5,000 policies. A pod
//     that has finished, or that is in its node's network, is not kept, so its addresses do not count.
//   - The addresses of this node's pods come from their ADDs (Cluster.Attach), seconds before the API
//     shows them.
//   - An object that cannot be read closes what it may concern, and is reported (Cluster.Problems). A
//     policy that cannot be understood is in the state: policy.Compile closes and reports it.
package policies
