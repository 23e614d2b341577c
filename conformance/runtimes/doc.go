// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtimes tests container runtimes: how they call CNI plugins. It gives a runtime networks whose plugins are
// recorders, which note each call and misbehave on order, asks it to attach and detach containers, and judges what the
// recorders noted.
//
// The runtime is reached through one command of the user. The suite runs it with one more argument, the operation:
//
//	add | del | check   attach, detach or check the container
//	gc                  remove what belongs to no valid attachment of the network
//	status              say whether the network can be used
//
// It ends with the exit status 0 if the operation succeeded, and 77 (Absent) if the runtime does not have it; add prints the result
// if the runtime has one. Variables say the rest. The first five are those of CNI's cnitool:
//
//	NETCONFPATH    directory of network configurations
//	CNI_PATH       directory of the plugins
//	CNI_IFNAME     interface in the container
//	CNI_ARGS       K=V;K=V
//	CAP_ARGS       capabilities, as a JSON object
//	NETWORK        name of the network
//	NETNS          path of the container's namespace
//	CONTAINERID    id of the container
//	CACHE_DIR      directory for what the runtime remembers
//	VALID_ATTACHMENTS   for gc: [{"containerID": …, "ifname": …}]
//
// A scenario is a network and a list of such operations (scenarios.go). A rule judges the recording of one scenario, and says who
// demands it (rules.go).
package runtimes
