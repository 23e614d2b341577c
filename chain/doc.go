// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chain is the runtime library: it loads network configurations and
// runs their plugins as the specification asks a container runtime to
// (SPEC.md sections 1 and 3).
//
//	rt := &chain.Runtime{Path: []string{"/opt/cni/bin"}}
//	list, err := rt.Load("mynet")
//	result, err := rt.Add(ctx, list, chain.Attachment{ContainerID: id, NetNS: ns, IfName: "eth0"})
//
// An ADD is a transaction: when a plugin fails, every plugin of the list gets a
// DEL. A DEL runs every plugin whatever the others say and keeps the cached
// result until all of them succeeded. Operations on one container follow one
// another, and GC excludes ADD and DEL, by file locks, so both also hold
// between processes.
//
// Results are cached in libcni's format and place, so that a runtime built on
// libcni and this library can take over from each other on a live node. What
// differs from libcni is listed in docs/libcni.md and held by tests.
package chain
