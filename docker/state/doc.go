// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package state is the Docker driver's memory: dockerd never repeats a network or an
// endpoint, and sends nothing after it was killed. Each object has a file of its own,
// which names each step before it is done: after a kill, the driver knows what may exist.
// After a power loss it knows all objects (fsync), but an endpoint's file may be an older
// one: an endpoint's phase means nothing after a reboot.
package state
