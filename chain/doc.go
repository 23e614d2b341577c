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
// An ADD is a transaction: when a plugin fails, every plugin of the list gets a DEL. A DEL
// calls every plugin, goes on after errors, and keeps the cached result until all of them
// succeeded. File locks make operations on one container run one after another and keep GC
// apart from ADD and DEL, also between processes.
//
// Results are cached in libcni's format and place, so that a runtime on libcni and one on
// this library can take over from each other on a live node. docs/libcni.md lists the
// differences from libcni, and tests check them.
package chain
