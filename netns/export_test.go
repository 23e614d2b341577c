// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

// LockTime is how long Create waits.
var LockTime = &lockTime
