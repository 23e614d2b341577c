// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mirror keeps on the node's disk what an ADD needs to isolate a pod before its first
// container runs. The agent writes the files (Write), and an ADD reads them (Read) without the
// agent and without the API server.
//
// The files have decisions, not policies: the agent has compiled them already, so an ADD evaluates
// nothing, however many policies there are. They are in /var/lib/patchbay/node/policy:
//
//	pods/<uid>         the decision for a pod of this node whose labels the agent knows
//	namespaces/<name>  the decision for any other pod of a namespace
//	head               the decision for the pods of any other namespace
//
// An ADD uses the first of these files that exists, and no other. So a pod never meets a mixture of
// two states, although the agent writes one file after the other: if the agent is killed in between,
// an ADD uses either the old decision or the new one.
//
// Whatever cannot be understood isolates: a file that is damaged or of a newer schema, a directory
// that other users may change, a namespace that is not in the mirror while the mirror has a policy.
// If there is no mirror at all, policies were never enabled on this node, and nothing is isolated.
// A head alone isolates all pods: policies are enabled, and the agent has never known them (Isolate).
// An old mirror is used however old it is.
package mirror
