// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package state is what the Docker driver must not forget: dockerd never tells a
// network or an endpoint twice, and says nothing when it was killed. Each has a
// file of its own, which says what is about to be done before it is done, and is
// on the disk (fsync) before the call goes on: a driver that was killed, or a
// node that lost its power, knows afterwards what may be there.
package state
