// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package state is what the Docker driver must not forget: dockerd never tells a
// network or an endpoint twice, and says nothing when it was killed. Each has a
// file of its own, which says what is about to be done before it is done: a driver
// that was killed knows afterwards what may be there. A node that lost its power
// knows which there were (fsync); how far an endpoint had come may be as it was
// before, since nothing of that counts after a reboot.
package state
