// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

// Doubt is doubt of all processes, for tests.
func Doubt(was *Mark, why string) (State, string) { return findUsers("/proc").doubt(was, why) }
