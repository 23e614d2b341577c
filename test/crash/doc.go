// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash tests that nothing leaks: after a fault at every step of an ADD, a kill -9
// at any moment, a namespace deleted first, a reboot. It checks the table in
// docs/ownership.md over the whole chain of an ordinary node, counting every object of the
// node before and after.
package crash
