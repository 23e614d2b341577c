// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash tests that nothing is left behind. It tests a fault at every step of an ADD, a
// kill -9 at any moment, a namespace that is deleted first, and a reboot. It checks the table in
// docs/ownership.md with the whole chain of an ordinary node, and counts every object of the node
// before and after.
package crash
